-- What the provider decided is written once.
UPDATE payments
SET status = $1, charge_id = $2
WHERE id = $3
  AND status = 'processing'
RETURNING id, account, merchant_reference, amount, currency, status, charge_id, refunded
