-- The inbox says that a message is not heard twice. This says that there is one entry all the
-- same, should anybody ever tell the same thing in two messages.
INSERT INTO ledger (about, payment_id, amount, currency)
VALUES ($1, $2, $3, $4)
ON CONFLICT (about) DO NOTHING
