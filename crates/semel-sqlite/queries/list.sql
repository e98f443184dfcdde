-- Operations, newest first, from a cursor on; the first page begins after all ids there can
-- be, so that every page is found by a seek. The filters that are not set admit all: what they
-- pass over is bounded by the floor.
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel_operations
WHERE id < ?1 -- guard: after the page before
  AND id >= ?8 -- guard: no further than it was to look
  AND (?2 IS NULL OR status = ?2) -- guard: filter
  AND (?3 IS NULL OR tenant = ?3) -- guard: filter
  AND (?4 IS NULL OR operation = ?4) -- guard: filter
  AND (?5 IS NULL OR key = ?5) -- guard: filter
  AND (?6 IS NULL OR (dead_lettered_at IS NOT NULL) = ?6) -- guard: filter
ORDER BY id DESC
LIMIT ?7
