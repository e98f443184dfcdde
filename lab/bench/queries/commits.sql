-- Commits in one database, and bytes in the log of all of them. A backend reports what it did
-- when it ends at the latest, so this is read after all connections have ended.
SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8
FROM pg_stat_database
WHERE datname = $1
