-- The owner is silent, and a retry noticed before the sweeper did. It may have executed, so
-- nobody executes again.
UPDATE semel_operations
SET status = 'unknown', reconcile_after = ?4, reconcile_attempts = 0,
    error_code = 'in_progress_lock_expired', updated_at = ?4
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 -- guard: misuse first
  AND status = 'in_progress' -- guard: only an execution is lost
  AND locked_until <= ?4 -- guard: the owner is silent
