-- Schedules the next try of a message that was just claimed.
UPDATE semel_inbox
SET tries = ?3, due_at = ?4
WHERE source = ?1 -- guard: one sender's
  AND id = ?2 -- guard: one message
