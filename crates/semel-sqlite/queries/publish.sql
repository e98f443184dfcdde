-- Writes an event in the application's transaction. An event with this id that exists already is
-- the same event.
INSERT INTO semel_outbox (id, kind, aggregate, payload, written_at, tries)
VALUES (?1, ?2, ?3, ?4, ?5, 0)
ON CONFLICT (id) DO NOTHING
