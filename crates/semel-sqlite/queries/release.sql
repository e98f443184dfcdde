-- The holder has proof that nothing happened: the next request may execute.
UPDATE semel_operations
SET status = 'failed_retryable', error_code = ?3, updated_at = ?4, expires_at = ?4 + replay_us
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only an execution has a holder
