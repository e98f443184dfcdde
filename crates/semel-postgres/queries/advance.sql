-- Phases committed: where the next attempt would go on.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
word AS MATERIALIZED (
    SELECT *
    FROM unnest($2::uuid[], $3::bigint[], $4::text[], $5::bytea[])
        AS word (id, attempt, point, data)
)
UPDATE semel.operations
SET recovery_point = word.point, recovery_data = word.data, updated_at = clock.now
FROM word
CROSS JOIN clock
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status = 'in_progress' -- guard: only an execution has a holder
RETURNING operations.id
