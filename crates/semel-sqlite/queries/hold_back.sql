-- Holds an aggregate back until a time. Rust computes the delay, since it depends on the tries.
INSERT INTO semel_outbox_held (aggregate, until, reason)
VALUES (?1, ?2, ?3)
ON CONFLICT (aggregate) DO UPDATE
SET until = excluded.until, reason = excluded.reason
