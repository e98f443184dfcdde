-- Nothing is inserted where the reference is taken. By whom is asked next.
INSERT INTO payments (id, account, merchant_reference, amount, currency, status)
VALUES ($1, $2, $3, $4, $5, 'processing')
ON CONFLICT DO NOTHING
