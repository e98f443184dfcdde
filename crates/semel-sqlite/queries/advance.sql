-- Stores the recovery point of a phase that committed. The next attempt resumes there.
UPDATE semel_operations
SET recovery_point = ?3, recovery_data = ?4, updated_at = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only a record in progress has a holder
