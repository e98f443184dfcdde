-- Marks records whose lease expired as unknown, longest expired first. Skips rows that another
-- worker or the owner has locked, and records that may still be resumed.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.status = 'in_progress' -- guard: only a record in progress
      -- Implied by the next condition; for the index. Subtracts from now, since a sum may overflow.
      AND operations.locked_until <= (SELECT now FROM clock)
      AND operations.locked_until <= (SELECT now FROM clock) - coalesce(operations.resume_us, 0) -- guard: the time to resume is over
    -- Sorts only the due rows.
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
