-- Renews a lease. Never to an earlier time: a delayed heartbeat must not shorten what a later one
-- gave.
UPDATE semel_operations
SET locked_until = max(locked_until, ?3), updated_at = ?4
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status = 'in_progress' -- guard: only a record in progress has a holder
