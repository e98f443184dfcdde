-- Reserves the amount before the provider is called: of two concurrent refunds that exceed the
-- payment together, one updates no row.
UPDATE payments
SET refunded = refunded + $1
WHERE id = $2
  AND account = $3
  AND status = 'succeeded'
  AND refunded + $1 <= amount
RETURNING id, account, merchant_reference, amount, currency, status, charge_id, refunded
