-- A message from elsewhere. The primary key is what makes it once: of any number of deliveries
-- one inserts.
INSERT INTO semel_inbox (source, id, received_at, forget_at, payload, due_at, tries)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)
ON CONFLICT (source, id) DO NOTHING
