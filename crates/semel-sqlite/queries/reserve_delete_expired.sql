-- Deletes a record whose replay window ended, to start a new one under its key, for whatever request.
-- Run only where the policy says so. A new row and not an update: the old fencing token must be
-- invalid.
DELETE FROM semel_operations
WHERE key_hash = ?1
  AND (status = 'expired' OR (status = 'completed' AND expires_at <= ?2)) -- guard: the replay window ended
