-- The reconciler could not find out: stores why not, and when to try again.
UPDATE semel_operations
SET error_code = ?3, reconcile_after = ?4, updated_at = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict applies to one attempt
  AND status = 'unknown' -- guard: only an unknown record is resolved
