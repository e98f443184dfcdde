-- One row a payment. It is named after the operation that opened it, so an attempt that comes
-- back finds its own.
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
    -- What went back, or is about to. Never more than was paid, whoever forgets to look.
    refunded           BIGINT NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount),
    -- What the provider decided has its name for it, and nothing else has.
    CHECK ((charge_id IS NOT NULL) = (status IN ('succeeded', 'declined'))),
    CHECK (refunded = 0 OR status = 'succeeded')
)
