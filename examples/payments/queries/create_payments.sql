-- One row a payment. An operation of the gateway is one payment however often it is executed,
-- hence UNIQUE; requests that came without a gateway have no operation, and NULLs do not collide.
CREATE TABLE IF NOT EXISTS payments (
    id                 TEXT    NOT NULL PRIMARY KEY,
    operation_id       TEXT    UNIQUE,
    -- The provider's idempotency key, by which the truth is asked for. NULL where it is given
    -- none: then the operation is the only name.
    downstream_key     TEXT,
    -- In minor units.
    amount             INTEGER NOT NULL CHECK (amount > 0),
    currency           TEXT    NOT NULL CHECK (length(currency) = 3),
    account            TEXT    NOT NULL,
    merchant_reference TEXT,
    status             TEXT    NOT NULL
        CHECK (status IN ('processing', 'succeeded', 'declined', 'unknown', 'not_executed')),
    charge_id          TEXT,
    -- How often the handler began on this payment: what a gateway should keep at one.
    executions         INTEGER NOT NULL DEFAULT 1 CHECK (executions >= 1),
    created_at         TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    -- What the provider decided has its name for it, and nothing else has.
    CHECK ((charge_id IS NOT NULL) = (status IN ('succeeded', 'declined')))
) STRICT
