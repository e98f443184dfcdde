-- Renews leases. Never to an earlier time: a delayed heartbeat must not shorten what a later one
-- gave.
UPDATE semel.operations
SET locked_until = greatest(operations.locked_until, clock.now + word.lease_us),
    updated_at = clock.now
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::bigint[])
    AS word (id, attempt, lease_us)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status = 'in_progress' -- guard: only a record in progress has a holder
RETURNING operations.id
