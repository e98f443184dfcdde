-- The oldest events, without those of aggregates that are held back. Nobody else publishes, so they
-- are not locked: whoever writes or removes one is not to wait for a broker. All numbers are 1 or
-- more: said so that the index is known to hold them.
SELECT
    outbox.id, outbox.kind, outbox.aggregate, outbox.payload, outbox.tries,
    outbox.written_at
FROM semel.outbox
LEFT JOIN semel.outbox_held AS held ON held.aggregate = outbox.aggregate
WHERE outbox.dead_at IS NULL -- guard: what waits for a person is not published
  AND outbox.seq >= 1
  AND (held.until IS NULL OR held.until <= $1) -- guard: held back
ORDER BY outbox.seq
LIMIT $2
