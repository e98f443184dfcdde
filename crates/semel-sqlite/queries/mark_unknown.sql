-- The holder cannot say whether it happened: due for reconciliation at once.
UPDATE semel_operations
SET status = 'unknown', error_code = ?3, reconcile_after = ?4, reconcile_attempts = 0,
    updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only an execution has a holder
