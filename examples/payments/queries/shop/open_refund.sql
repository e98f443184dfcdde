-- In one transaction with reserve_refund.sql.
INSERT INTO refunds (id, payment_id, amount, status)
VALUES ($1, $2, $3, 'processing')
