-- Counts one more refusal of an event by the broker, and returns the aggregate to hold back.
UPDATE semel_outbox
SET tries = tries + 1
WHERE id = ?1
  AND dead_at IS NULL -- guard: a dead-lettered event holds nothing back
RETURNING aggregate, tries
