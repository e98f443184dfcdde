-- Stores the recovery points of phases that committed. The next attempt resumes there.
UPDATE semel.operations
SET recovery_point = word.point, recovery_data = word.data, updated_at = clock.now
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::text[], $5::bytea[])
    AS word (id, attempt, point, data)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status = 'in_progress' -- guard: only a record in progress has a holder
RETURNING operations.id
