-- Writes the misuse of one tenant and operation.
INSERT OR REPLACE INTO semel_misuse (tenant, operation, count, first_at, last_at, last_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
