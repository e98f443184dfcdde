-- Schedules the next reconciliation of a record that was just claimed.
UPDATE semel_operations
SET reconcile_after = ?2, reconcile_attempts = ?3, updated_at = ?4
WHERE id = ?1
