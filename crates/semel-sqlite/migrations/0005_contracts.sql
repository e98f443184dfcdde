-- The rules that a record's fingerprint was made by: 0 for the default ones, else a hash of the
-- route's rules. A record is compared under its own rules.
ALTER TABLE semel_operations ADD COLUMN fingerprint_rules INTEGER NOT NULL DEFAULT 0;

-- What processes have published about what decides whether two requests are the same: one row with
-- one JSON document, which is replaced as a whole.
CREATE TABLE semel_contracts (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL CHECK (revision >= 0),
    document TEXT    NOT NULL
) STRICT;
INSERT INTO semel_contracts (one, revision, document) VALUES (1, 0, '{}');
