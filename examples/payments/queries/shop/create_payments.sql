-- One row a payment. Its id is derived from the operation, so a later attempt finds the row of the
-- first one.
CREATE TABLE IF NOT EXISTS payments (
    id                 TEXT   NOT NULL PRIMARY KEY,
    account            TEXT   NOT NULL,
    -- What the merchant calls it: an invoice, an order.
    merchant_reference TEXT   NOT NULL,
    -- In minor units.
    amount             BIGINT NOT NULL CHECK (amount > 0),
    currency           TEXT   NOT NULL CHECK (length(currency) = 3),
    status             TEXT   NOT NULL CHECK (status IN ('processing', 'succeeded', 'declined')),
    charge_id          TEXT,
    -- Refunded, or reserved for a refund. Never more than was paid.
    refunded           BIGINT NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount),
    -- What the provider decided has its name for it, and nothing else has.
    CHECK ((charge_id IS NOT NULL) = (status IN ('succeeded', 'declined'))),
    CHECK (refunded = 0 OR status = 'succeeded')
)
