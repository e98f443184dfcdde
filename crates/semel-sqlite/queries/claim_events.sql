-- The events that wait to be published, oldest first. Of an aggregate that is held back none is
-- taken: what comes later would overtake.
SELECT event.id, kind, event.aggregate, payload, written_at, tries
FROM semel_outbox AS event
LEFT JOIN semel_outbox_held AS held ON held.aggregate = event.aggregate
WHERE dead_at IS NULL -- guard: what waits for a person is not published
  AND (until IS NULL OR until <= ?1) -- guard: held back
ORDER BY seq
LIMIT ?2
