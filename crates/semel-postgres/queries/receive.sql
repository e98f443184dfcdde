-- Stores an incoming message once: of any number of deliveries one inserts.
INSERT INTO semel.inbox (source, id, payload, received_at, due_at, forget_at)
SELECT $2, $3, $4, clock.now, clock.now + $5::bigint, clock.now + $6::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
ON CONFLICT (source, id) DO NOTHING
RETURNING id
