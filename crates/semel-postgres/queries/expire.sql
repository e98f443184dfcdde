-- Ends replay windows. A tombstone without the response stays; where the policy wants none, the
-- record and its history are deleted.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash, operations.tombstone_us
    FROM semel.operations
    WHERE operations.status IN ('completed', 'failed_retryable') -- guard: unfinished records never expire
      AND operations.expires_at <= (SELECT now FROM clock) -- guard: the replay window ended
    ORDER BY operations.expires_at
    LIMIT $2
    FOR UPDATE OF operations SKIP LOCKED
),
deleted AS (
    DELETE FROM semel.operations
    USING due
    WHERE operations.key_hash = due.key_hash
      AND due.tombstone_us IS NULL -- guard: the others leave a tombstone
    RETURNING operations.id
),
buried AS (
    UPDATE semel.operations
    SET status = 'expired', purge_at = clock.now + due.tombstone_us, updated_at = clock.now,
        response_status = NULL, response_headers = NULL, response_body = NULL,
        schema_version = NULL, body_expires_at = NULL, recovery_point = NULL,
        recovery_data = NULL
    FROM due
    CROSS JOIN clock
    WHERE operations.key_hash = due.key_hash
      AND due.tombstone_us IS NOT NULL
    RETURNING operations.id
)
SELECT id, semel.forget_history(id)::text FROM deleted
UNION ALL
SELECT id, NULL FROM buried
