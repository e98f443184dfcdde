-- Showing a stored response to a person is recorded as well. A CHECK cannot be changed, so the
-- entries are put aside, and back into a table with the new one. Not by renaming: that would
-- rewrite the views of an application whose file this is, or fail at one that is broken. The
-- trigger that names the table finds the new one.
CREATE TABLE semel_history_aside AS SELECT * FROM semel_history;
DROP TABLE semel_history;
CREATE TABLE semel_history (
    operation_id  BLOB    NOT NULL CHECK (length(operation_id) = 16),
    seq           INTEGER NOT NULL CHECK (seq >= 1),
    at            INTEGER NOT NULL,
    attempt       INTEGER NOT NULL CHECK (attempt >= 0),
    what          TEXT    NOT NULL CHECK (
        what IN (
            'unknown', 'released', 'reattempted', 'resumed', 'completed_late', 'asked',
            'resolved_completed', 'resolved_not_executed', 'dead_lettered', 'erased', 'revealed',
            'fenced'
        )
    ),
    actor         TEXT    NOT NULL,
    code          TEXT,
    reason        TEXT,
    evidence      BLOB,
    evidence_hash BLOB    CHECK (length(evidence_hash) = 32),
    hash          BLOB    NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (operation_id, seq),
    -- Evidence may be erased; that there was some stays.
    CHECK (evidence IS NULL OR evidence_hash IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO semel_history (
    operation_id, seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
)
SELECT operation_id, seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
FROM semel_history_aside;
DROP TABLE semel_history_aside;

-- Figures for people. Nothing is decided by them, and no request waits for them: there is neither
-- an index nor a trigger on `semel_operations` for their sake.

-- Request counts by decision, a row for each interval and operation.
CREATE TABLE semel_activity (
    at          INTEGER NOT NULL,
    operation   TEXT    NOT NULL,
    created     INTEGER NOT NULL CHECK (created >= 0),
    replayed    INTEGER NOT NULL CHECK (replayed >= 0),
    in_progress INTEGER NOT NULL CHECK (in_progress >= 0),
    misuse      INTEGER NOT NULL CHECK (misuse >= 0),
    retried     INTEGER NOT NULL CHECK (retried >= 0),
    unknown     INTEGER NOT NULL CHECK (unknown >= 0),
    expired     INTEGER NOT NULL CHECK (expired >= 0),
    failed      INTEGER NOT NULL CHECK (failed >= 0),
    PRIMARY KEY (at, operation)
) STRICT, WITHOUT ROWID;

-- Who used keys for something else, a row for each tenant and command.
CREATE TABLE semel_misuse (
    tenant    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    count     INTEGER NOT NULL CHECK (count >= 0),
    first_at  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL,
    -- The operation whose key it was the last time.
    last_id   BLOB    NOT NULL CHECK (length(last_id) = 16),
    PRIMARY KEY (tenant, operation)
) STRICT, WITHOUT ROWID;

-- The latest are shown first, and those longest ago make room.
CREATE INDEX semel_misuse_last ON semel_misuse (last_at);

-- Who calls what: a key is looked for under each.
CREATE TABLE semel_callers (
    scope     TEXT NOT NULL CHECK (scope IN ('operation', 'tenant')),
    tenant    TEXT NOT NULL,
    operation TEXT NOT NULL,
    PRIMARY KEY (scope, tenant, operation)
) STRICT, WITHOUT ROWID;

-- When the latest census was taken: at most one row.
CREATE TABLE semel_census_taken (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    began_at    INTEGER NOT NULL,
    ended_at    INTEGER NOT NULL,
    -- Whether semel_callers has all of them.
    all_callers INTEGER NOT NULL CHECK (all_callers IN (0, 1))
) STRICT;

-- The lease of the process that counts next: at most one row.
CREATE TABLE semel_census_taker (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    owner TEXT    NOT NULL,
    until INTEGER NOT NULL
) STRICT;

-- How many operations there were then, by command and status, in the order of `place`.
CREATE TABLE semel_census (
    place     INTEGER PRIMARY KEY,
    operation TEXT    NOT NULL,
    status    TEXT    NOT NULL CHECK (
        status IN ('in_progress', 'completed', 'failed_retryable', 'unknown', 'expired')
    ),
    count     INTEGER NOT NULL CHECK (count >= 0)
) STRICT;
