-- Dead-letters an event that no broker accepts. The first instant stays.
UPDATE semel_outbox
SET dead_at = ?2, reason = ?3
WHERE id = ?1
  AND dead_at IS NULL -- guard: the first instant stays
RETURNING aggregate
