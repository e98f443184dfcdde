-- The reconciler could not find out: stores why not, and when to try again.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
done AS (
    UPDATE semel.operations
    SET error_code = $4, reconcile_after = $5, updated_at = clock.now
    FROM clock
    WHERE id = $2
      AND attempt = $3 -- guard: a verdict applies to one attempt
      AND status = 'unknown' -- guard: only an unknown record is resolved
    RETURNING id, attempt, awaited, error_code, clock.now
)
SELECT
    id, CASE WHEN awaited THEN pg_notify('semel', 'ended ' || id)::text END,
    semel.tell(id, now, attempt, 'asked', $6, error_code, $7, $8)::text
FROM done
