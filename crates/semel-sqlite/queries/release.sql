-- Releases an attempt that provably had no effect: the next request executes. Also from unknown: the
-- late owner knows that nothing happened, and as long as the attempt is current no other attempt was
-- granted.
UPDATE semel_operations
SET status = 'failed_retryable', error_code = ?3, updated_at = ?4, expires_at = ?4 + replay_us,
    dead_lettered_at = NULL
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status IN ('in_progress', 'unknown') -- guard: only an open outcome is released
