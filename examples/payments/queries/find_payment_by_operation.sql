-- What a reconciler asks for: it knows the operation and not the payment.
SELECT
    id, operation_id, downstream_key, amount, currency, account, merchant_reference, status,
    charge_id, executions, created_at
FROM payments
WHERE operation_id = ?1
