-- Fails where a statement of the transaction failed. PostgreSQL would answer COMMIT without an
-- error and roll back.
SELECT
