-- What came in and what went out. The payment or the refund that an entry is about has one entry,
-- whatever else is forgotten.
CREATE TABLE IF NOT EXISTS ledger (
    about      TEXT   NOT NULL PRIMARY KEY,
    payment_id TEXT   NOT NULL,
    -- Below zero where it went out.
    amount     BIGINT NOT NULL,
    currency   TEXT   NOT NULL
)
