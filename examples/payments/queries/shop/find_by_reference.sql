-- Who holds a reference: the payment that was just opened, or one of another operation.
SELECT id, account, merchant_reference, amount, currency, status, charge_id, refunded
FROM payments
WHERE account = $1
  AND merchant_reference = $2
  AND status <> 'declined'
