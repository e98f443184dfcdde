-- One row per record. Times are microseconds since the Unix epoch, as the pure function has
-- them; `to_timestamp(created_at / 1e6)` shows one to a person.
--
-- `status` decides which columns count. The others keep their last values, for people who read
-- the table with a SQL shell: a completed row still has the owner that executed it. So every
-- statement that acts on a time compares the status as well.
--
-- Not partitioned by time: a key must be unique over all partitions, and PostgreSQL can see to
-- that only where the key holds the partition. Retention works in small batches instead.
CREATE TABLE semel.operations (
    -- Sixteen bytes that stand for the identity in the index. The identity itself is in the
    -- row and is compared whenever the row is read: a hash alone is not trusted.
    key_hash            uuid    NOT NULL,
    id                  uuid    NOT NULL,
    scope               text    NOT NULL,
    tenant              text    NOT NULL,
    operation           text    NOT NULL,
    key                 text    NOT NULL,
    fingerprint_version integer NOT NULL,
    fingerprint         bytea   NOT NULL,
    status              text    NOT NULL,
    attempt             bigint  NOT NULL,
    owner               text    NOT NULL,
    locked_until        bigint  NOT NULL,
    -- Whether somebody in another process waits for the end and is to be told.
    awaited             boolean NOT NULL DEFAULT false,
    recovery_point      text,
    recovery_data       bytea,
    response_status     integer,
    response_headers    bytea,
    response_body       bytea,
    schema_version      integer,
    resource_type       text,
    resource_id         text,
    error_code          text,
    reconcile_after     bigint,
    reconcile_attempts  bigint,
    dead_lettered_at    bigint,
    resolved_by         text,
    replay_us           bigint  NOT NULL,
    body_us             bigint  NOT NULL,
    -- NULL: deleted at the end of the replay window, no tombstone.
    tombstone_us        bigint,
    created_at          bigint  NOT NULL,
    updated_at          bigint  NOT NULL,
    completed_at        bigint,
    expires_at          bigint,
    body_expires_at     bigint,
    purge_at            bigint,

    -- The lock: of two first requests under one key, one inserts.
    CONSTRAINT operations_pkey PRIMARY KEY (key_hash),
    -- What each state has and has not. One condition with a branch for each, not one for each
    -- rule: every statement that writes reads them anew, and every row is held against them.
    CONSTRAINT operations_state CHECK (
        CASE status
            WHEN 'in_progress' THEN
                (response_status, response_headers, response_body, schema_version, dead_lettered_at, purge_at) IS NULL
            -- A completed operation has an answer, and nothing else has one. Only a stored body
            -- can be dropped.
            WHEN 'completed' THEN
                (response_status, response_headers, schema_version, completed_at, expires_at) IS NOT NULL
                AND (dead_lettered_at, purge_at) IS NULL
                AND (body_expires_at IS NULL OR response_body IS NOT NULL)
            WHEN 'failed_retryable' THEN
                expires_at IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, dead_lettered_at, purge_at) IS NULL
            -- Only what is unknown can wait for a person.
            WHEN 'unknown' THEN
                (reconcile_after, reconcile_attempts) IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, purge_at) IS NULL
            -- Only a tombstone can be purged.
            WHEN 'expired' THEN
                purge_at IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, dead_lettered_at) IS NULL
            ELSE false
        END
        AND (status = 'completed' OR body_expires_at IS NULL)
        AND attempt >= 1
        AND octet_length(fingerprint) = 32
        AND (scope = 'operation' OR scope = 'tenant')
        AND (recovery_point IS NULL) = (recovery_data IS NULL)
        AND (resource_type IS NULL) = (resource_id IS NULL)
    )
) WITH (
    -- Every operation is inserted once and updated once, with its response: the new version of
    -- a row seldom fits beside the old one, and room that is kept free is never used.
    fillfactor = 100,
    -- Every completion leaves a dead version behind. The default of a fifth of the table would
    -- let millions pile up before anything is cleared away.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05,
    -- No pause: the batches of a vacuum that keeps up are small.
    autovacuum_vacuum_cost_delay = 0
);

-- A response is stored once and read seldom; compressing it costs more than it saves, and
-- much of it is compressed already.
ALTER TABLE semel.operations ALTER COLUMN response_body SET STORAGE EXTERNAL;

-- The id of the fencing token, and the order of lists: ids grow, so this index grows at its end.
CREATE UNIQUE INDEX operations_id ON semel.operations (id);

-- What the background jobs look for. Each index holds only the rows of its job: the first two stay as
-- small as the unfinished records, whatever the size of the table. The condition on the time keeps
-- other statements from these indexes: on an empty table the planner would choose them to find one
-- row.
CREATE INDEX operations_leases ON semel.operations (locked_until)
    WHERE status = 'in_progress' AND locked_until IS NOT NULL;
CREATE INDEX operations_due ON semel.operations (reconcile_after)
    WHERE status = 'unknown' AND dead_lettered_at IS NULL AND reconcile_after IS NOT NULL;
CREATE INDEX operations_windows ON semel.operations (expires_at)
    WHERE status IN ('completed', 'failed_retryable') AND expires_at IS NOT NULL;
CREATE INDEX operations_bodies ON semel.operations (body_expires_at)
    WHERE body_expires_at IS NOT NULL;
CREATE INDEX operations_tombstones ON semel.operations (purge_at)
    WHERE purge_at IS NOT NULL;

-- The number of erasures: a cache drops all responses from before the last one. One row, written
-- only by erasures. It starts at a random number, so that a cache of one database is not used for
-- another.
CREATE TABLE semel.epoch (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    erasures  bigint  NOT NULL
);
INSERT INTO semel.epoch (erasures)
VALUES (('x' || left(replace(gen_random_uuid()::text, '-', ''), 12))::bit(48)::bigint);
