-- An account sees its own payments and no others.
SELECT id, account, merchant_reference, amount, currency, status, charge_id, refunded
FROM payments
WHERE id = $1
  AND account = $2
