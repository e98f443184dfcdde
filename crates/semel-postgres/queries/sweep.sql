-- Executions whose owner is silent become unknown, longest due first. What another worker
-- or the owner itself holds is passed over, and so is what still waits for somebody who resumes it.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.status = 'in_progress' -- guard: only an execution is lost
      -- All that can be due, for the index. Taken from now, since no sum of two times is safe.
      AND operations.locked_until <= (SELECT now FROM clock)
      AND operations.locked_until <= (SELECT now FROM clock) - coalesce(operations.resume_us, 0) -- guard: nobody resumes it any more
    -- What is sorted is what is due, not what is stored.
    ORDER BY operations.locked_until + coalesce(operations.resume_us, 0)
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
