-- How a call to the provider ended. What the provider decided is never replaced; what one
-- execution failed to learn counts only while no later one has begun.
UPDATE payments
SET status = ?2, charge_id = ?3
WHERE id = ?1
  AND charge_id IS NULL
  AND (?3 IS NOT NULL OR executions = ?4)
RETURNING
    id, operation_id, downstream_key, amount, currency, account, merchant_reference, status,
    charge_id, executions, created_at
