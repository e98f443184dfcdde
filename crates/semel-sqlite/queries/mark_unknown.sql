-- Marks an attempt whose effect the holder does not know; reconciliation is due at once. Keeps the
-- resource that the attempt may have created, or the one that an earlier attempt named.
UPDATE semel_operations
SET status = 'unknown', error_code = ?3, reconcile_after = ?4, reconcile_attempts = 0,
    resource_type = coalesce(?5, resource_type), resource_id = coalesce(?6, resource_id),
    updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only a record in progress has a holder
