-- The broker refused an event once more. Until when its aggregate is held back is said next, in the
-- same transaction; meanwhile it cannot be marked as sent.
UPDATE semel.outbox
SET tries = least(tries + 1, 4294967295)
WHERE id = $1
  AND dead_at IS NULL -- guard: what waits for a person holds nobody back
RETURNING aggregate, tries
