-- The verdict is that the attempt did not execute: the next request executes.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
done AS (
    UPDATE semel.operations
    SET status = 'failed_retryable', error_code = $4, updated_at = clock.now,
        expires_at = clock.now + replay_us, dead_lettered_at = NULL, resolved_by = $5
    FROM clock
    WHERE id = $2
      AND attempt = $3 -- guard: a verdict applies to one attempt
      AND status = 'unknown' -- guard: only an unknown record is resolved
    RETURNING id, attempt, awaited, error_code, clock.now
)
SELECT
    id, CASE WHEN awaited THEN pg_notify('semel', 'ended ' || id)::text END,
    semel.tell(id, now, attempt, 'resolved_not_executed', $5, error_code, $6, $7)::text
FROM done
