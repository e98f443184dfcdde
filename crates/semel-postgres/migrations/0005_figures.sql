-- Figures for people: how much there is, and how fast it comes. And a line in the history, `revealed`,
-- where a person is shown a stored response, which needs nothing here.
--
-- Nothing here touches `semel.operations`, not even with an index: no request pays for a figure.
--
-- The name of a command may be longer than an index can hold. So the tables are keyed by its hash,
-- `sha256(convert_to(operation, 'UTF8'))`, which has no known collisions and need not be compared.

-- Request counts by decision and operation, in intervals of ten seconds. Every process adds to them.
CREATE TABLE semel.activity (
    at             bigint NOT NULL,
    operation_hash bytea  NOT NULL,
    operation      text   NOT NULL,
    created        bigint NOT NULL,
    replayed       bigint NOT NULL,
    in_progress    bigint NOT NULL,
    misuse         bigint NOT NULL,
    retried        bigint NOT NULL,
    unknown        bigint NOT NULL,
    expired        bigint NOT NULL,
    failed         bigint NOT NULL,

    CONSTRAINT activity_pkey PRIMARY KEY (at, operation_hash),
    CONSTRAINT activity_line CHECK (
        octet_length(operation_hash) = 32
        AND least(created, replayed, in_progress, misuse, retried, unknown, expired, failed) >= 0
    )
) WITH (
    -- A line is written some times within ten seconds and never again: room for its versions
    -- beside it, of which no index has to know.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000
);

-- Who used keys for something else: how often, and whose key it was the last time.
CREATE TABLE semel.misuse (
    tenant         text   NOT NULL,
    operation_hash bytea  NOT NULL,
    operation      text   NOT NULL,
    count          bigint NOT NULL,
    first_at       bigint NOT NULL,
    last_at        bigint NOT NULL,
    last_id        uuid   NOT NULL,

    CONSTRAINT misuse_pkey PRIMARY KEY (tenant, operation_hash),
    CONSTRAINT misuse_line CHECK (octet_length(operation_hash) = 32 AND count >= 0)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The latest are shown; those longest ago make room, or are forgotten.
CREATE INDEX misuse_last ON semel.misuse (last_at);

-- Who calls what: a key is looked for under each.
CREATE TABLE semel.callers (
    scope          text  NOT NULL,
    tenant         text  NOT NULL,
    operation_hash bytea NOT NULL,
    operation      text  NOT NULL,

    CONSTRAINT callers_pkey PRIMARY KEY (tenant, operation_hash, scope),
    CONSTRAINT callers_caller CHECK (
        octet_length(operation_hash) = 32
        AND (scope = 'operation' OR scope = 'tenant')
    )
);

-- The latest record counts. One row, or none, so that a reader never sees parts of two counts. `unnest(operations, statuses, counts)` shows it to a person.
CREATE TABLE semel.census (
    singleton   boolean  NOT NULL DEFAULT true,
    began_at    bigint   NOT NULL,
    ended_at    bigint   NOT NULL,
    all_callers boolean  NOT NULL,
    operations  text[]   NOT NULL,
    statuses    text[]   NOT NULL,
    counts      bigint[] NOT NULL,

    CONSTRAINT census_pkey PRIMARY KEY (singleton),
    CONSTRAINT census_one CHECK (
        singleton
        AND cardinality(operations) = cardinality(statuses)
        AND cardinality(operations) = cardinality(counts)
    )
);

-- The lease of the process that counts next. One row, or none.
CREATE TABLE semel.census_taker (
    singleton boolean NOT NULL DEFAULT true,
    owner     text    NOT NULL,
    until     bigint  NOT NULL,

    CONSTRAINT census_taker_pkey PRIMARY KEY (singleton),
    CONSTRAINT census_taker_one CHECK (singleton)
);

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
        EXECUTE format(
            'GRANT SELECT, INSERT, UPDATE, DELETE ON semel.activity, semel.misuse, semel.callers, semel.census, semel.census_taker TO %s',
            writer
        );
    END LOOP;
END
$do$;
