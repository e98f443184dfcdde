-- Asks for a notification when an attempt ends. Skips a locked row, which is about to end anyway:
-- waiting requests also poll.
UPDATE semel.operations
SET awaited = true
WHERE key_hash = (
    SELECT key_hash
    FROM semel.operations
    WHERE id = $1
      AND attempt = $2
      AND status = 'in_progress'
      AND NOT awaited
    FOR UPDATE SKIP LOCKED
)
