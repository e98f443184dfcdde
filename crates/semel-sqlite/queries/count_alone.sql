-- One process takes the census, for a time: it goes on, or it takes over where the time is up.
INSERT INTO semel_census_taker (one, owner, until)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (owner = excluded.owner OR until <= ?3) -- guard: one at a time
