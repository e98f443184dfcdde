-- It is proven that it did not happen: the next request may execute.
UPDATE semel_operations
SET status = 'failed_retryable', error_code = ?3, updated_at = ?4, expires_at = ?4 + replay_us,
    dead_lettered_at = NULL, resolved_by = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict is about one attempt
  AND status = 'unknown' -- guard: only what is unknown is decided
