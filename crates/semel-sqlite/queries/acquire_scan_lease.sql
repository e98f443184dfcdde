-- Acquires or renews the lease of the one process that scans the records.
INSERT INTO semel_census_taker (one, owner, until)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (owner = excluded.owner OR until <= ?3) -- guard: one at a time
