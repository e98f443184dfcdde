-- All that a retry needs: was it the same request, is it done, and how did it end.
SELECT request_hash, status, response_status, response_body
FROM idempotency_keys
WHERE tenant = $1 AND operation = $2 AND key = $3
