-- The server's version.
SELECT current_setting('server_version_num')::integer
