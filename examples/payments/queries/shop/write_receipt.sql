-- As for the ledger: one receipt for a payment, whatever was told how often.
INSERT INTO receipts (payment_id, account, text)
VALUES ($1, $2, $3)
ON CONFLICT (payment_id) DO NOTHING
