-- The table of the benchmark. Made at every start: the harness kills this process and starts it again.
CREATE TABLE IF NOT EXISTS idempotency_keys (
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
