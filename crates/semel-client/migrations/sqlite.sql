-- One row per intent. Times are microseconds since the Unix epoch.
CREATE TABLE intents (
    -- Open intents are finished in the order in which they were stored.
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    intent           TEXT    NOT NULL UNIQUE,
    key              TEXT    NOT NULL UNIQUE,
    -- The header with it: `idempotency-key: "{key}"`. NULL: that of the client that sends it.
    key_form         TEXT,
    fingerprint      BLOB    NOT NULL,
    method           TEXT    NOT NULL,
    url              TEXT    NOT NULL,
    -- [["name", "value"], …] without credentials; a character for each byte (ISO 8859-1).
    headers          TEXT    NOT NULL,
    -- NULL once the intent is finished: it is never sent again.
    body             BLOB,
    created_at       INTEGER NOT NULL,
    -- Until when the server knows the key. Nothing is sent after it.
    expires_at       INTEGER NOT NULL,
    -- Whether a process that did not store it may have sent it, too.
    is_shared        INTEGER NOT NULL DEFAULT 0,
    -- Whether the server said that the outcome is unknown, and of which operation.
    is_unknown       INTEGER NOT NULL DEFAULT 0,
    operation_id     TEXT,
    finished_at      INTEGER,
    status           INTEGER,
    response_headers TEXT,
    -- NULL in a finished intent: the response was over the bound.
    response_body    BLOB,
    CHECK ((finished_at IS NULL) = (status IS NULL)),
    CHECK ((finished_at IS NULL) = (response_headers IS NULL)),
    CHECK (finished_at IS NOT NULL OR response_body IS NULL),
    CHECK ((finished_at IS NULL) = (body IS NOT NULL))
) STRICT;

CREATE INDEX open_intents ON intents (id) WHERE finished_at IS NULL;
CREATE INDEX finished_intents ON intents (finished_at) WHERE finished_at IS NOT NULL;
