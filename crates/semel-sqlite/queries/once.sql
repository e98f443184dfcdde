-- Marks that a consumer handled a message, in the transaction of its effect. Settled from the
-- start: it is never tried again. Of any number of deliveries one inserts.
INSERT INTO semel_inbox (source, id, received_at, forget_at, payload, due_at, tries)
VALUES (?1, ?2, ?3, ?4, NULL, NULL, 0)
ON CONFLICT (source, id) DO NOTHING
