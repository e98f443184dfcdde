-- Which server process answers, whether commits wait for a standby, and how far the slowest of
-- those standbys is behind. Only a member of `pg_monitor` sees the lag.
SELECT
    pg_backend_pid() AS process,
    current_setting('synchronous_standby_names') <> '' AS waits_for_standby,
    max(pg_wal_lsn_diff(
        CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_lsn() END, flush_lsn
    ))::bigint AS lag_bytes,
    (extract(epoch FROM max(flush_lag)) * 1000000)::bigint AS lag
FROM pg_stat_replication
WHERE sync_state IN ('sync', 'quorum') OR current_setting('synchronous_standby_names') = ''
