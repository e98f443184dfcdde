-- As list_unknown.sql, oldest first: the record that has waited longest is the first to decide.
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel_operations
WHERE status = 'unknown'
  AND id > ?1 -- guard: after the page before
  AND (?2 IS NULL OR status = ?2) -- guard: filter
  AND (?3 IS NULL OR tenant = ?3) -- guard: filter
  AND (?4 IS NULL OR operation = ?4) -- guard: filter
  AND (?5 IS NULL OR key = ?5) -- guard: filter
  AND (?6 IS NULL OR (dead_lettered_at IS NOT NULL) = ?6) -- guard: filter
ORDER BY id
LIMIT ?7
