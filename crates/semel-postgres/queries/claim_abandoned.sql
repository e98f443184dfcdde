-- Starts the next attempt of one operation's records whose lease expired and that can be resumed,
-- longest expired first. Locked rows are skipped: a phase that is about to commit decides where
-- the next attempt resumes. The last ORDER BY is needed: an UPDATE returns its rows in the order of its
-- join, which is another one when the planner hashes.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash, operations.locked_until AS expired_since
    FROM semel.operations
    WHERE operations.status = 'in_progress' -- guard: only a record in progress
      AND operations.operation = $2 -- guard: the completer's own operation
      AND operations.resume_us IS NOT NULL -- guard: only resumable records
      AND operations.locked_until <= (SELECT now FROM clock) -- guard: the lease expired
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
    RETURNING operations.*, clock.now, due.expired_since
)
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at,
    semel.tell(id, now, attempt, 'resumed', 'completer', NULL, NULL, NULL)::text
FROM claimed
ORDER BY expired_since
