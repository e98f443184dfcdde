-- Still nobody knows: why not, and when to look again.
UPDATE semel_operations
SET error_code = ?3, reconcile_after = ?4, updated_at = ?5
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict is about one attempt
  AND status = 'unknown' -- guard: only what is unknown is decided
