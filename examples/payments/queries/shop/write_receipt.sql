-- One receipt for a payment, as in add_ledger_entry.sql.
INSERT INTO receipts (payment_id, account, text)
VALUES ($1, $2, $3)
ON CONFLICT (payment_id) DO NOTHING
