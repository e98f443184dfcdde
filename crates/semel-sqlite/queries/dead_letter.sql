-- Dead-letters an unknown record: reconciliation stops until a person decides. The first instant
-- stays.
UPDATE semel_operations
SET dead_lettered_at = ?4, error_code = ?3, updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict applies to one attempt
  AND status = 'unknown' -- guard: only an unknown record is resolved
  AND dead_lettered_at IS NULL -- guard: the first instant stays
