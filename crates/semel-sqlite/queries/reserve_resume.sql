-- Grants the next attempt of a record with phases whose lease expired; it resumes at the recovery
-- point. Run only where the policy says so: elsewhere an expired lease is unknown.
UPDATE semel_operations
SET attempt = attempt + 1, owner = ?5, locked_until = ?6,
    replay_us = ?7, body_us = ?8, tombstone_us = ?9, error_code = NULL, updated_at = ?10,
    resume_us = ?11
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 AND fingerprint_rules = ?4 -- guard: the fingerprint matches
  AND status = 'in_progress' -- guard: only a record in progress
  AND locked_until <= ?10 -- guard: the lease expired
RETURNING id, attempt, recovery_point, recovery_data
