-- Adds a caller. Adding it twice at once leaves one row.
INSERT INTO semel_callers (scope, tenant, operation)
VALUES (?1, ?2, ?3)
ON CONFLICT DO NOTHING
