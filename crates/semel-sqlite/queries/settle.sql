-- Marks a message as handled: only its id is kept.
UPDATE semel_inbox
SET payload = NULL, due_at = NULL
WHERE source = ?1 -- guard: one sender's
  AND id = ?2 -- guard: one message
