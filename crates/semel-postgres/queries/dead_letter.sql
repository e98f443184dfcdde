-- Dead-letters an unknown record: reconciliation stops until a person decides. The first instant
-- stays.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
set_aside AS (
    UPDATE semel.operations
    SET dead_lettered_at = clock.now, error_code = $4, updated_at = clock.now
    FROM clock
    WHERE id = $2
      AND attempt = $3 -- guard: a verdict applies to one attempt
      AND status = 'unknown' -- guard: only an unknown record is resolved
      AND dead_lettered_at IS NULL -- guard: the first instant stays
    RETURNING id, attempt, error_code, clock.now
)
SELECT id, semel.tell(id, now, attempt, 'dead_lettered', 'worker', error_code, NULL, NULL)::text
FROM set_aside
