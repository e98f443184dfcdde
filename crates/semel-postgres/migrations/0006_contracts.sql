-- The rules that a record's fingerprint was made by: 0 for the default ones, else a hash of the
-- route's rules. A record is compared under its own rules. A constant default rewrites no row.
ALTER TABLE semel.operations ADD COLUMN fingerprint_rules bigint NOT NULL DEFAULT 0;

-- What processes have published about what decides whether two requests are the same: one row with
-- one JSON document, which is replaced as a whole.
CREATE TABLE semel.contracts (
    one      boolean PRIMARY KEY CHECK (one),
    revision bigint  NOT NULL CHECK (revision >= 0),
    document text    NOT NULL
);
INSERT INTO semel.contracts (one, revision, document) VALUES (true, 0, '{}');

-- Users who may write operations may write these: a gateway whose user owns nothing still works
-- after another user has migrated.
DO $do$
DECLARE
    writer text;
BEGIN
    FOR writer IN
        SELECT DISTINCT acl.grantee::regrole::text
        FROM pg_catalog.pg_class, pg_catalog.aclexplode(pg_class.relacl) AS acl
        WHERE pg_class.oid = 'semel.operations'::regclass
          AND acl.privilege_type = 'UPDATE'
          AND acl.grantee NOT IN (0, pg_class.relowner)
    LOOP
        EXECUTE format('GRANT SELECT, UPDATE ON semel.contracts TO %s', writer);
    END LOOP;
END
$do$;
