-- In one transaction with the room that was taken for it.
INSERT INTO refunds (id, payment_id, amount, status)
VALUES ($1, $2, $3, 'processing')
