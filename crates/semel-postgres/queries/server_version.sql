-- The server's version, and whether it is a standby.
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery()
