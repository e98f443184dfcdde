-- Fails where a statement of the transaction failed. PostgreSQL answers a COMMIT then as if all were
-- well, and rolls back.
SELECT
