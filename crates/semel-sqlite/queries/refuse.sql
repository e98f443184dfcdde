-- A broker refused an event: how often it did, and what is to be held back for it.
UPDATE semel_outbox
SET tries = tries + 1
WHERE id = ?1
  AND dead_at IS NULL -- guard: what waits for a person holds nobody back
RETURNING aggregate, tries
