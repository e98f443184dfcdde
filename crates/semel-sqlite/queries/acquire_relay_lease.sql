-- Acquires or renews the lease of the one relay that publishes.
INSERT INTO semel_outbox_relay (one, owner, until)
VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE
SET owner = excluded.owner, until = excluded.until
WHERE (owner = excluded.owner OR until <= ?3) -- guard: one at a time
