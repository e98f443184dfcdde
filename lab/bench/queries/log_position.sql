-- How many bytes the server has written to its log, for all databases.
SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8
