-- The holders are alive. Never earlier than before: a beat that was delayed must not shorten
-- what a later one gave.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
word AS MATERIALIZED (
    SELECT *
    FROM unnest($2::uuid[], $3::bigint[], $4::bigint[])
        AS word (id, attempt, lease_us)
)
UPDATE semel.operations
SET locked_until = greatest(operations.locked_until, clock.now + word.lease_us),
    updated_at = clock.now
FROM word
CROSS JOIN clock
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status = 'in_progress' -- guard: only an execution has a holder
RETURNING operations.id
