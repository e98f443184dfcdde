-- The caller that inserts the row executes.
INSERT INTO idempotency_keys (tenant, operation, key, request_hash, status)
VALUES ($1, $2, $3, $4, 'in_progress')
ON CONFLICT DO NOTHING
