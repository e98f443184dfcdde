-- At the start: the calls of the process before are over, and nobody knows how they ended.
UPDATE payments
SET status = 'unknown'
WHERE status = 'processing'
