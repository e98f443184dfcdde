-- Nobody will find out without a person. Once set, the instant stays.
UPDATE semel_operations
SET dead_lettered_at = ?4, error_code = ?3, updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict is about one attempt
  AND status = 'unknown' -- guard: only what is unknown is decided
  AND dead_lettered_at IS NULL -- guard: the first instant stays
