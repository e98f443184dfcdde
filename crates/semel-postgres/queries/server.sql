-- What kind of server this is.
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery()
