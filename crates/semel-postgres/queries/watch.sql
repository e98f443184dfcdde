-- Somebody waits for the end of an attempt and is to be told. A row that is held is about to
-- end anyway; whoever waits looks for itself now and then.
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
