-- Inserts nothing where the reference is taken; find_by_reference.sql then finds the holder.
INSERT INTO payments (id, account, merchant_reference, amount, currency, status)
VALUES ($1, $2, $3, $4, $5, 'processing')
ON CONFLICT DO NOTHING
