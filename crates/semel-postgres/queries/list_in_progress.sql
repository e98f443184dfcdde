-- As list.sql for records in progress: these are few and have an index of their own. That index is
-- ordered by lease, so the rows are sorted afterwards.
WITH under_way AS MATERIALIZED (
    SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
        created_at, updated_at
    FROM semel.operations
    WHERE status = 'in_progress'
      -- Always true; with it the planner can use the index.
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
