-- Dead-lettered events, oldest first. `seq >= 1` is always true; with it the planner can use the
-- index.
SELECT id, kind, aggregate, payload, written_at, dead_at, reason
FROM semel.outbox
WHERE dead_at IS NOT NULL -- guard: only dead-lettered events
  AND seq >= 1
ORDER BY seq
LIMIT $1
