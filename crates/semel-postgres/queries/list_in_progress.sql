-- As list.sql, where only what is under way can fit: it is few, too, and has an index. Sorted after
-- they are found, since that index is in the order of the leases.
WITH under_way AS MATERIALIZED (
    SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
        created_at, updated_at
    FROM semel.operations
    WHERE status = 'in_progress'
      -- Every time there is: said so that the index is known to hold them all.
      AND locked_until >= (-9223372036854775808)::bigint
)
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM under_way
WHERE id < $1 -- guard: after the page before
  AND ($2::text IS NULL OR tenant = $2) -- guard: filter
  AND ($3::text IS NULL OR operation = $3) -- guard: filter
  AND ($4::text IS NULL OR key = $4) -- guard: filter
ORDER BY id DESC
LIMIT $5
