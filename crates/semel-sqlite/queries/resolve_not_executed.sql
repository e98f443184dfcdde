-- The verdict is that the attempt did not execute: the next request executes.
UPDATE semel_operations
SET status = 'failed_retryable', error_code = ?3, updated_at = ?4, expires_at = ?4 + replay_us,
    dead_lettered_at = NULL, resolved_by = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict applies to one attempt
  AND status = 'unknown' -- guard: only an unknown record is resolved
