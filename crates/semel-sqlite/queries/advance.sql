-- A phase committed: where the next attempt would go on.
UPDATE semel_operations
SET recovery_point = ?3, recovery_data = ?4, updated_at = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only an execution has a holder
