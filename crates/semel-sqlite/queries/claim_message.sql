-- The next look at a message that was just claimed.
UPDATE semel_inbox
SET tries = ?3, due_at = ?4
WHERE source = ?1 -- guard: the sender's own
  AND id = ?2 -- guard: this one
