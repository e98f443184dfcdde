-- Nothing more is to be done with a message: only its id is kept.
UPDATE semel_inbox
SET payload = NULL, due_at = NULL
WHERE source = ?1 -- guard: the sender's own
  AND id = ?2 -- guard: this one
