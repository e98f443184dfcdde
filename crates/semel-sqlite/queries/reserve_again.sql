-- Grants the next attempt of a record whose last attempt provably did not execute. Of any number
-- of requests at once one finds the row still free. Clears `reconcile_after`: with it
-- `complete.sql` would take the new attempt for a late one.
UPDATE semel_operations
SET status = 'in_progress', attempt = attempt + 1, owner = ?5, locked_until = ?6,
    replay_us = ?7, body_us = ?8, tombstone_us = ?9, error_code = NULL, updated_at = ?10,
    reconcile_after = NULL, reconcile_attempts = NULL, resume_us = ?11
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 AND fingerprint_rules = ?4 -- guard: the fingerprint matches
  AND status = 'failed_retryable' -- guard: proven not executed
RETURNING id, attempt, recovery_point, recovery_data
