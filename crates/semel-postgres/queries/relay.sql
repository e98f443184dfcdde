-- Makes one relay the one that publishes, or keeps it so; no row where another is. Run in the
-- transaction that reads the events, so that they are read after it.
INSERT INTO semel.outbox_relay AS relay (owner, until)
SELECT $2, clock.now + $3::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
ON CONFLICT (singleton) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (relay.owner = excluded.owner OR relay.until <= excluded.until - $3::bigint) -- guard: one relay at a time
RETURNING relay.until - $3::bigint
