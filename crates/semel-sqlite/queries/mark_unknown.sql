-- The holder cannot say whether it happened: due for reconciliation at once. What it may have
-- created is kept, or else what an earlier attempt named.
UPDATE semel_operations
SET status = 'unknown', error_code = ?3, reconcile_after = ?4, reconcile_attempts = 0,
    resource_type = coalesce(?5, resource_type), resource_id = coalesce(?6, resource_id),
    updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only an execution has a holder
