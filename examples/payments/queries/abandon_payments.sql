-- At the start: the provider calls of the previous process ended with an unknown outcome.
UPDATE payments
SET status = 'unknown'
WHERE status = 'processing'
