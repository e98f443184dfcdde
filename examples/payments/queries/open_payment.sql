-- The row exists before the provider is called: after a crash it is the only trace of a charge.
-- A further execution of an operation goes on with the row of the first, and with its key for the
-- provider. No row comes back where the operation is about something else.
INSERT INTO payments (
    id, operation_id, downstream_key, amount, currency, account, merchant_reference, status
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'processing')
ON CONFLICT (operation_id) DO UPDATE
SET executions = executions + 1,
    status = CASE WHEN charge_id IS NULL THEN 'processing' ELSE status END
WHERE amount = excluded.amount
  AND currency = excluded.currency
  AND account = excluded.account
  AND merchant_reference IS excluded.merchant_reference
RETURNING
    id, operation_id, downstream_key, amount, currency, account, merchant_reference, status,
    charge_id, executions, created_at
