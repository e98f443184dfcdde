-- What the provider decided is written once.
UPDATE refunds
SET status = $1, provider_refund_id = $2
WHERE id = $3
  AND status = 'processing'
