-- The events to publish, oldest first. Skips aggregates that are held back: later events must not
-- overtake.
SELECT event.id, kind, event.aggregate, payload, written_at, tries
FROM semel_outbox AS event
LEFT JOIN semel_outbox_held AS held ON held.aggregate = event.aggregate
WHERE dead_at IS NULL -- guard: dead-lettered events are not published
  AND (until IS NULL OR until <= ?1) -- guard: held back
ORDER BY seq
LIMIT ?2
