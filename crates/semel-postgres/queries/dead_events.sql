-- Events that wait for a person, oldest first. All numbers are 1 or more: said so that the index is
-- known to hold them.
SELECT id, kind, aggregate, payload, written_at, dead_at, reason
FROM semel.outbox
WHERE dead_at IS NOT NULL -- guard: only what nobody took
  AND seq >= 1
ORDER BY seq
LIMIT $1
