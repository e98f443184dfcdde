-- Room for a refund is taken before the provider is asked: of two refunds at once that are too
-- much together, one finds none.
UPDATE payments
SET refunded = refunded + $1
WHERE id = $2
  AND account = $3
  AND status = 'succeeded'
  AND refunded + $1 <= amount
RETURNING id, account, merchant_reference, amount, currency, status, charge_id, refunded
