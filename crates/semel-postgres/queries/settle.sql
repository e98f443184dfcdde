-- Marks a message as handled: only its id is kept.
UPDATE semel.inbox
SET payload = NULL
WHERE source = $1 -- guard: one sender's
  AND id = $2 -- guard: one message
