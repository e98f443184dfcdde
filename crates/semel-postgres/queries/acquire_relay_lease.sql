-- Acquires or renews the lease of the one relay that publishes; no row where another relay holds
-- it. Run in the transaction that reads the events, so that they are read afterwards.
INSERT INTO semel.outbox_relay AS relay (owner, until)
SELECT $2, clock.now + $3::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
ON CONFLICT (singleton) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (relay.owner = excluded.owner OR relay.until <= excluded.until - $3::bigint) -- guard: one relay at a time
RETURNING relay.until - $3::bigint
