-- Returns a dead-lettered event to the queue, at its old position and with no tries.
UPDATE semel_outbox
SET dead_at = NULL, reason = NULL, tries = 0
WHERE id = ?1
  AND dead_at IS NOT NULL -- guard: only dead-lettered events
