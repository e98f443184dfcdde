-- The next attempt of an operation that is proven not to have executed. Of any number of
-- requests at once one finds the row still free. No time to be looked at is left from the attempt
-- before: `complete.sql` would take this one for late.
UPDATE semel_operations
SET status = 'in_progress', attempt = attempt + 1, owner = ?4, locked_until = ?5,
    replay_us = ?6, body_us = ?7, tombstone_us = ?8, error_code = NULL, updated_at = ?9,
    reconcile_after = NULL, reconcile_attempts = NULL, resume_us = ?10
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 -- guard: misuse first
  AND status = 'failed_retryable' -- guard: proven not executed
RETURNING id, attempt, recovery_point, recovery_data
