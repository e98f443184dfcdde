-- An event, in the application's own transaction. One of that name which is there is the same.
INSERT INTO semel_outbox (id, kind, aggregate, payload, written_at, tries)
VALUES (?1, ?2, ?3, ?4, ?5, 0)
ON CONFLICT (id) DO NOTHING
