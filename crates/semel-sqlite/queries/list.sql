-- Records, newest first, before a cursor. The first page starts after the largest possible id, so
-- that every page is one index seek. A filter that is NULL admits all; the floor bounds how many
-- rows are examined.
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel_operations
WHERE id < ?1 -- guard: after the page before
  AND id >= ?8 -- guard: the floor bounds the page
  AND (?2 IS NULL OR status = ?2) -- guard: filter
  AND (?3 IS NULL OR tenant = ?3) -- guard: filter
  AND (?4 IS NULL OR operation = ?4) -- guard: filter
  AND (?5 IS NULL OR key = ?5) -- guard: filter
  AND (?6 IS NULL OR (dead_lettered_at IS NOT NULL) = ?6) -- guard: filter
ORDER BY id DESC
LIMIT ?7
