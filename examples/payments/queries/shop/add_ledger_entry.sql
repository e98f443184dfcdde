-- The inbox processes each message once. ON CONFLICT also covers two messages about one payment.
INSERT INTO ledger (about, payment_id, amount, currency)
VALUES ($1, $2, $3, $4)
ON CONFLICT (about) DO NOTHING
