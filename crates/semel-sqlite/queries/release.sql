-- Releases an attempt that provably had no effect: the next request executes.
UPDATE semel_operations
SET status = 'failed_retryable', error_code = ?3, updated_at = ?4, expires_at = ?4 + replay_us
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only a record in progress has a holder
