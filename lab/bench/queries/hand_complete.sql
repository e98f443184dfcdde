-- A second statement and a second commit for each request.
UPDATE idempotency_keys
SET status = 'completed', response_status = $4, response_body = $5, completed_at = now()
WHERE tenant = $1 AND operation = $2 AND key = $3
