-- What `GET /payments/{id}` shows.
SELECT
    id, operation_id, downstream_key, amount, currency, account, merchant_reference, status,
    charge_id, executions, created_at
FROM payments
WHERE id = ?1
