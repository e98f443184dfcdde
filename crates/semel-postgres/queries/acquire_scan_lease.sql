-- Acquires or renews the lease of the one process that scans the records; no row where another
-- process holds it.
INSERT INTO semel.census_taker AS taker (owner, until)
SELECT $2, clock.now + $3::bigint
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
ON CONFLICT (singleton) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (taker.owner = excluded.owner OR taker.until <= excluded.until - $3::bigint) -- guard: one at a time
