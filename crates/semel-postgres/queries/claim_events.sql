-- The oldest events, without those of aggregates that are held back. Only one relay publishes at a
-- time, so the rows are not locked: writers do not wait for a broker. `seq >= 1` is always true;
-- with it the planner can use the index.
SELECT
    outbox.id, outbox.kind, outbox.aggregate, outbox.payload, outbox.tries,
    outbox.written_at
FROM semel.outbox
LEFT JOIN semel.outbox_held AS held ON held.aggregate = outbox.aggregate
WHERE outbox.dead_at IS NULL -- guard: dead-lettered events are not published
  AND outbox.seq >= 1
  AND (held.until IS NULL OR held.until <= $1) -- guard: held back
ORDER BY outbox.seq
LIMIT $2
