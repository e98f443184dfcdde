-- Holds an aggregate back. When it is tried again is computed in Rust: it depends on the tries.
INSERT INTO semel_outbox_held (aggregate, until, reason)
VALUES (?1, ?2, ?3)
ON CONFLICT (aggregate) DO UPDATE
SET until = excluded.until, reason = excluded.reason
