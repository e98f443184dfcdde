-- The effect of an operation.
INSERT INTO payments (key, amount) VALUES ($1, 12950)
