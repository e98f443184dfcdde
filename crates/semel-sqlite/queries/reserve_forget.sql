-- Makes room for a new operation under a key whose replay window is over. Only run where
-- the policy says so. A new row, not a changed one: the old fence must be dead.
DELETE FROM semel_operations
WHERE key_hash = ?1
  AND fingerprint = ?2 AND fingerprint_version = ?3 -- guard: misuse first
  AND (status = 'expired' OR (status = 'completed' AND expires_at <= ?4)) -- guard: the window is over
