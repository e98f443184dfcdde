-- One row a refund, named after the operation that opened it.
CREATE TABLE IF NOT EXISTS refunds (
    id                 TEXT   NOT NULL PRIMARY KEY,
    payment_id         TEXT   NOT NULL REFERENCES payments (id),
    amount             BIGINT NOT NULL CHECK (amount > 0),
    status             TEXT   NOT NULL CHECK (status IN ('processing', 'succeeded', 'declined')),
    provider_refund_id TEXT,
    CHECK ((provider_refund_id IS NOT NULL) = (status IN ('succeeded', 'declined')))
)
