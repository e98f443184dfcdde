-- One row per record. Times are microseconds since the Unix epoch.
--
-- `status` decides which columns count. The others keep their last values, for people who read
-- the table with a SQL shell: a completed row still has the owner that executed it. So every
-- statement that acts on a time compares the status as well.
--
-- An ordinary rowid table: with WITHOUT ROWID the bodies would lie in the index of the
-- keys, and every write would move them.
CREATE TABLE semel_operations (
    seq                 INTEGER PRIMARY KEY,
    -- Sixteen bytes that stand for the identity in the index. The identity itself is in
    -- the row and is compared whenever the row is read: a hash alone is not trusted.
    key_hash            BLOB    NOT NULL CHECK (length(key_hash) = 16),
    id                  BLOB    NOT NULL CHECK (length(id) = 16),
    scope               TEXT    NOT NULL CHECK (scope IN ('operation', 'tenant')),
    tenant              TEXT    NOT NULL,
    operation           TEXT    NOT NULL,
    key                 TEXT    NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    fingerprint         BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    status              TEXT    NOT NULL,
    attempt             INTEGER NOT NULL CHECK (attempt >= 1),
    owner               TEXT    NOT NULL,
    locked_until        INTEGER NOT NULL,
    recovery_point      TEXT,
    recovery_data       BLOB,
    response_status     INTEGER,
    response_headers    BLOB,
    response_body       BLOB,
    schema_version      INTEGER,
    resource_type       TEXT,
    resource_id         TEXT,
    error_code          TEXT,
    reconcile_after     INTEGER,
    reconcile_attempts  INTEGER,
    dead_lettered_at    INTEGER,
    resolved_by         TEXT,
    replay_us           INTEGER NOT NULL,
    body_us             INTEGER NOT NULL,
    -- NULL: deleted at the end of the replay window, no tombstone.
    tombstone_us        INTEGER,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    completed_at        INTEGER,
    expires_at          INTEGER,
    body_expires_at     INTEGER,
    purge_at            INTEGER,

    -- Not IN: for a list of this length SQLite builds a table, at every write.
    CHECK (
        status = 'in_progress' OR status = 'completed' OR status = 'failed_retryable'
        OR status = 'unknown' OR status = 'expired'
    ),
    -- A completed operation has an answer, and nothing else has one.
    CHECK ((status = 'completed') = (response_status IS NOT NULL)),
    CHECK ((status = 'completed') = (response_headers IS NOT NULL)),
    CHECK ((status = 'completed') = (schema_version IS NOT NULL)),
    CHECK (status = 'completed' OR response_body IS NULL),
    CHECK (status <> 'completed' OR (completed_at IS NOT NULL AND expires_at IS NOT NULL)),
    -- Only a stored body can be dropped.
    CHECK (body_expires_at IS NULL OR response_body IS NOT NULL),
    CHECK (status <> 'failed_retryable' OR expires_at IS NOT NULL),
    CHECK (status <> 'unknown' OR (reconcile_after IS NOT NULL AND reconcile_attempts IS NOT NULL)),
    -- Only what is unknown can wait for a person.
    CHECK (dead_lettered_at IS NULL OR status = 'unknown'),
    -- Only a tombstone can be purged.
    CHECK ((status = 'expired') = (purge_at IS NOT NULL)),
    CHECK ((recovery_point IS NULL) = (recovery_data IS NULL)),
    CHECK ((resource_type IS NULL) = (resource_id IS NULL))
) STRICT;

-- The lock: of two first requests under one key, one inserts.
CREATE UNIQUE INDEX semel_operations_key ON semel_operations (key_hash);

-- The fence's name, and the order of lists: the ids grow, so this index grows at its end.
CREATE UNIQUE INDEX semel_operations_id ON semel_operations (id);

-- What the workers look for. Each holds only the rows that its worker may want: the first
-- two stay as small as what is under way or unresolved, whatever the size of the table.
CREATE INDEX semel_operations_leases ON semel_operations (locked_until)
    WHERE status = 'in_progress';
CREATE INDEX semel_operations_due ON semel_operations (reconcile_after)
    WHERE status = 'unknown' AND dead_lettered_at IS NULL;
CREATE INDEX semel_operations_windows ON semel_operations (expires_at)
    WHERE status IN ('completed', 'failed_retryable');
CREATE INDEX semel_operations_bodies ON semel_operations (body_expires_at)
    WHERE body_expires_at IS NOT NULL;
CREATE INDEX semel_operations_tombstones ON semel_operations (purge_at)
    WHERE purge_at IS NOT NULL;
