-- Deletes an event that the broker confirmed. A dead-lettered event stays: a person may be looking
-- at it.
DELETE FROM semel_outbox
WHERE id = ?1
  AND dead_at IS NULL -- guard: dead-lettered events stay
RETURNING aggregate
