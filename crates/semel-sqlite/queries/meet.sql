-- Somebody calls something. Told twice at once it is still one.
INSERT INTO semel_callers (scope, tenant, operation)
VALUES (?1, ?2, ?3)
ON CONFLICT DO NOTHING
