-- The table that most teams write. No lease, no attempt, no expiry: it does less than ours.
CREATE TABLE idempotency_keys (
    tenant          text        NOT NULL,
    operation       text        NOT NULL,
    key             text        NOT NULL,
    request_hash    bytea       NOT NULL,
    status          text        NOT NULL,
    response_status integer,
    response_body   bytea,
    created_at      timestamptz NOT NULL DEFAULT now(),
    completed_at    timestamptz,
    PRIMARY KEY (tenant, operation, key)
)
