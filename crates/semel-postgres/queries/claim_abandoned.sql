-- Executions of one command whose owner is silent, and which are made to be resumed, become the next
-- attempts of a completer, longest silent first. What somebody holds is passed over: a phase that is
-- about to commit decides where the next attempt goes on.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.status = 'in_progress' -- guard: only an execution has an owner
      AND operations.operation = $2 -- guard: the completer's own operation
      AND operations.resume_us IS NOT NULL -- guard: only what is made to be resumed
      AND operations.locked_until <= (SELECT now FROM clock) -- guard: the owner is silent
    ORDER BY operations.locked_until
    LIMIT $5
    FOR UPDATE OF operations SKIP LOCKED
),
claimed AS (
    UPDATE semel.operations
    SET attempt = operations.attempt + 1, owner = $3, locked_until = clock.now + $4::bigint,
        error_code = NULL, updated_at = clock.now
    FROM due
    CROSS JOIN clock
    WHERE operations.key_hash = due.key_hash
    RETURNING operations.*, clock.now
)
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint, status, attempt,
    owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at,
    semel.tell(id, now, attempt, 'resumed', 'completer', NULL, NULL, NULL)::text
FROM claimed
