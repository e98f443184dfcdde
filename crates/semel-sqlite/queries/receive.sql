-- Stores an incoming message once: the primary key lets one of any number of deliveries insert.
INSERT INTO semel_inbox (source, id, received_at, forget_at, payload, due_at, tries)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)
ON CONFLICT (source, id) DO NOTHING
