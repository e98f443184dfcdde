-- Remembers what a response said before the call ends: how long the key is known, and that the outcome is unknown.
UPDATE intents
SET expires_at = min(expires_at, ?3),
    is_unknown = max(is_unknown, ?4),
    operation_id = coalesce(?5, operation_id)
WHERE intent = ?1
  AND key = ?2
  AND finished_at IS NULL;
