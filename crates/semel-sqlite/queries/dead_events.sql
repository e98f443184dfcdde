-- Dead-lettered events, oldest first.
SELECT id, kind, aggregate, payload, written_at, dead_at, reason
FROM semel_outbox
WHERE dead_at IS NOT NULL -- guard: only dead-lettered events
ORDER BY seq
LIMIT ?1
