-- Executions whose owner is silent become unknown, longest silent first. What another worker
-- or the owner itself holds is passed over.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.status = 'in_progress' -- guard: only an execution is lost
      AND operations.locked_until <= (SELECT now FROM clock) -- guard: the owner is silent
    ORDER BY operations.locked_until
    LIMIT $2
    FOR UPDATE OF operations SKIP LOCKED
),
swept AS (
    UPDATE semel.operations
    SET status = 'unknown', reconcile_after = clock.now, reconcile_attempts = 0,
        error_code = 'in_progress_lock_expired', updated_at = clock.now
    FROM due
    CROSS JOIN clock
    WHERE operations.key_hash = due.key_hash
    RETURNING operations.id, operations.attempt, operations.awaited, operations.error_code, clock.now
)
SELECT
    id, attempt, CASE WHEN awaited THEN pg_notify('semel', 'ended ' || id)::text END,
    semel.tell(id, now, attempt, 'unknown', 'sweeper', error_code, NULL, NULL)::text
FROM swept
