-- Marks a record whose lease expired as unknown, where a retry notices before the sweep. The
-- attempt may have executed, so no request executes again.
UPDATE semel_operations
SET status = 'unknown', reconcile_after = ?5, reconcile_attempts = 0,
    error_code = 'in_progress_lock_expired', updated_at = ?5
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 AND fingerprint_rules = ?4 -- guard: the fingerprint matches
  AND status = 'in_progress' -- guard: only a record in progress
  AND locked_until <= ?5 -- guard: the lease expired
