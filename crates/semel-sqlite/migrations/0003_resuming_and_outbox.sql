-- How long after its lease a record can be resumed; NULL: not at all. Records in progress from before
-- this column are not resumed.
ALTER TABLE semel_operations ADD COLUMN resume_us INTEGER CHECK (resume_us >= 0);

-- The sweep looks for records that were not resumed in time. By the lease alone every sweep would
-- pass over all that may still be resumed. The expression is the one in `sweep.sql`.
DROP INDEX semel_operations_leases;
CREATE INDEX semel_operations_leases ON semel_operations (locked_until + coalesce(resume_us, 0))
    WHERE status = 'in_progress';

-- What a completer looks for, by its command. Operations that are not made to be resumed are not
-- in it, and cost nothing.
CREATE INDEX semel_operations_abandoned ON semel_operations (operation, locked_until)
    WHERE status = 'in_progress' AND resume_us IS NOT NULL;

-- Outgoing events, from the transaction of the change that they report until a broker has confirmed
-- them. `seq` is the order in which they were written: there is one writer at a time, so
-- it is the order of the commits too.
CREATE TABLE semel_outbox (
    seq        INTEGER PRIMARY KEY,
    id         BLOB    NOT NULL CHECK (length(id) = 16),
    kind       TEXT    NOT NULL CHECK (length(CAST(kind AS BLOB)) BETWEEN 1 AND 255),
    aggregate  TEXT    NOT NULL CHECK (length(CAST(aggregate AS BLOB)) BETWEEN 1 AND 255),
    payload    BLOB    NOT NULL CHECK (length(payload) <= 1048576),
    written_at INTEGER NOT NULL,
    -- How often a broker refused it.
    tries      INTEGER NOT NULL CHECK (tries >= 0),
    -- Since when it waits for a person, and what the broker said.
    dead_at    INTEGER,
    reason     TEXT    CHECK (length(CAST(reason AS BLOB)) <= 1024),
    CHECK ((dead_at IS NULL) = (reason IS NULL))
) STRICT;

-- An event that is written again while it is there is the same event.
CREATE UNIQUE INDEX semel_outbox_id ON semel_outbox (id);

-- What waits to be published lies together in this, in the order of `seq`: however many wait for
-- a person, the relay does not pass over them.
CREATE INDEX semel_outbox_waiting ON semel_outbox (dead_at, seq) WHERE dead_at IS NULL;
-- What waits for a person, however long the backlog.
CREATE INDEX semel_outbox_dead ON semel_outbox (seq) WHERE dead_at IS NOT NULL;

-- Aggregates whose oldest event was refused. Their other events wait with it, or they would be
-- published out of order.
CREATE TABLE semel_outbox_held (
    aggregate TEXT    PRIMARY KEY,
    until     INTEGER NOT NULL,
    -- What the broker said last, for whoever looks.
    reason    TEXT    NOT NULL CHECK (length(CAST(reason AS BLOB)) <= 1024)
) STRICT, WITHOUT ROWID;

-- Who publishes, and until when: at most one row.
CREATE TABLE semel_outbox_relay (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    owner TEXT    NOT NULL,
    until INTEGER NOT NULL
) STRICT;
