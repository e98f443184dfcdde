-- Counts one more refusal of an event by the broker. `hold_aggregate.sql` follows in the same
-- transaction; until then the event cannot be marked as sent.
UPDATE semel.outbox
SET tries = least(tries + 1, 4294967295)
WHERE id = $1
  AND dead_at IS NULL -- guard: a dead-lettered event holds nothing back
RETURNING aggregate, tries
