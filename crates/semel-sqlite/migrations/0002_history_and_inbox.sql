-- The history of a record: one entry per unusual transition. A record that starts, completes and is
-- replayed has none. Entries are chained by `hash`, which is computed in Rust.
--
-- Without a rowid: all that is ever asked for is the entries of one operation in order.
CREATE TABLE semel_history (
    operation_id  BLOB    NOT NULL CHECK (length(operation_id) = 16),
    seq           INTEGER NOT NULL CHECK (seq >= 1),
    at            INTEGER NOT NULL,
    attempt       INTEGER NOT NULL CHECK (attempt >= 0),
    what          TEXT    NOT NULL CHECK (
        what IN (
            'unknown', 'released', 'reattempted', 'resumed', 'completed_late', 'asked',
            'resolved_completed', 'resolved_not_executed', 'dead_lettered', 'erased', 'fenced'
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

-- A history goes with its record, whichever statement removes the record.
CREATE TRIGGER semel_operations_gone AFTER DELETE ON semel_operations
BEGIN
    DELETE FROM semel_history WHERE operation_id = OLD.id;
END;

-- Events from elsewhere, a row each. One without a payload is settled: only its id is
-- remembered, so that a repetition is known.
CREATE TABLE semel_inbox (
    source      TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    received_at INTEGER NOT NULL,
    forget_at   INTEGER NOT NULL,
    payload     BLOB,
    due_at      INTEGER,
    tries       INTEGER NOT NULL CHECK (tries >= 0),
    PRIMARY KEY (source, id),
    -- What is settled is not looked at, and what is not will be.
    CHECK ((payload IS NULL) = (due_at IS NULL))
) STRICT;

CREATE INDEX semel_inbox_due ON semel_inbox (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX semel_inbox_forget ON semel_inbox (forget_at);

-- Which operation created something, the newest last.
CREATE INDEX semel_operations_resource ON semel_operations (resource_id, id)
    WHERE resource_id IS NOT NULL;

-- What is unresolved, in the order of lists: as small as that, whatever the size of the table.
CREATE INDEX semel_operations_unknown ON semel_operations (id) WHERE status = 'unknown';

-- A record in progress has no `reconcile_after`; by that `complete.sql` detects a late completion.
-- From now on a new attempt clears what an earlier one left.
UPDATE semel_operations
SET reconcile_after = NULL, reconcile_attempts = NULL
WHERE status = 'in_progress' AND reconcile_after IS NOT NULL;
