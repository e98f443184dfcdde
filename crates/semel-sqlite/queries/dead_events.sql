-- The events that wait for a person, oldest first.
SELECT id, kind, aggregate, payload, written_at, dead_at, reason
FROM semel_outbox
WHERE dead_at IS NOT NULL -- guard: only what waits for a person
ORDER BY seq
LIMIT ?1
