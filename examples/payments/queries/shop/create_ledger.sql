-- What was paid and what was refunded. A payment or a refund has one entry.
CREATE TABLE IF NOT EXISTS ledger (
    about      TEXT   NOT NULL PRIMARY KEY,
    payment_id TEXT   NOT NULL,
    -- Negative for a refund.
    amount     BIGINT NOT NULL,
    currency   TEXT   NOT NULL
)
