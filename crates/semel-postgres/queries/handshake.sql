-- The first statement of every connection. It makes commits wait until they are durable, whatever
-- the role or the database is set to: a grant that is lost would be granted again. Then it describes
-- the server. Without parameters and in one round trip, so that it also works through a pooler.
SELECT
    set_config(
        'synchronous_commit',
        CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply'
            ELSE 'on'
        END,
        false
    ) AS synchronous_commit,
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS is_read_only,
    current_setting('synchronous_standby_names') <> '' AS waits_for_standby,
    EXISTS (SELECT FROM pg_stat_replication) AS has_standby,
    CASE
        WHEN pg_is_in_recovery() THEN ''
        ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8)
    END AS timeline,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
