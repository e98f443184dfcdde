-- As list.sql for records in progress. The index of the leases holds just these; it has another
-- order, but they are few. Without the hint SQLite takes the index of the ids, which holds all
-- records.
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel_operations INDEXED BY semel_operations_leases
WHERE status = 'in_progress'
  AND id < ?1 -- guard: after the page before
  AND (?2 IS NULL OR tenant = ?2) -- guard: filter
  AND (?3 IS NULL OR operation = ?3) -- guard: filter
  AND (?4 IS NULL OR key = ?4) -- guard: filter
ORDER BY id DESC
LIMIT ?5
