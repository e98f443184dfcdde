-- Resumable records, the outbox, and effects that happen once.
--
-- Nothing here reads or rewrites stored rows: the migration is quick, whatever the size of the
-- tables.

-- How long after its lease a record can be resumed. NULL: not at all. A gateway of the version before
-- writes NULL, and finds its records as it left them.
--
-- No index: a search for expired leases reads `operations_leases`, which holds only records in
-- progress, and passes over those that may still be resumed.
ALTER TABLE semel.operations
    ADD COLUMN resume_us bigint,
    -- Not held against the rows there are: all of them have NULL.
    ADD CONSTRAINT operations_resume CHECK (resume_us >= 0) NOT VALID;

-- Events that wait to be published, in the order of `seq`. What was published is removed.
CREATE TABLE semel.outbox (
    -- One number at a time (no CACHE): a session that keeps numbers for later would write them out
    -- of order.
    seq        bigint GENERATED ALWAYS AS IDENTITY,
    id         uuid   NOT NULL,
    kind       text   NOT NULL,
    aggregate  text   NOT NULL,
    payload    bytea  NOT NULL,
    written_at bigint NOT NULL,
    -- How often the broker refused it.
    tries      bigint NOT NULL DEFAULT 0,
    -- Nobody took it, and it waits for a person, who finds here what the broker said.
    dead_at    bigint,
    reason     text,

    -- An event that is written twice while it waits is there once.
    CONSTRAINT outbox_pkey PRIMARY KEY (id),
    CONSTRAINT outbox_event CHECK (
        octet_length(kind) BETWEEN 1 AND 255
        AND octet_length(aggregate) BETWEEN 1 AND 255
        AND octet_length(payload) <= 1048576
        AND tries >= 0
        AND (dead_at IS NULL) = (reason IS NULL)
    )
) WITH (
    -- Rows are inserted and deleted, hardly ever updated.
    fillfactor = 100,
    -- Filled and emptied all day: what counts is how many rows died, not what part of a table that
    -- is nearly empty they were. The relay reads from the old end, where the dead ones are.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

-- A payload is read once and removed; compressing it costs more than it saves.
ALTER TABLE semel.outbox ALTER COLUMN payload SET STORAGE EXTERNAL;

-- The oldest waiting and the oldest dead-lettered events. The condition on the number keeps other
-- statements from these indexes: on an empty table the planner would choose them to find one event.
CREATE UNIQUE INDEX outbox_waiting ON semel.outbox (seq) WHERE dead_at IS NULL AND seq >= 1;
CREATE UNIQUE INDEX outbox_dead ON semel.outbox (seq) WHERE dead_at IS NOT NULL AND seq >= 1;

-- Aggregates whose oldest event was refused: until when they are held back, and the broker's reason.
CREATE TABLE semel.outbox_held (
    aggregate text   NOT NULL,
    until     bigint NOT NULL,
    reason    text   NOT NULL,

    CONSTRAINT outbox_held_pkey PRIMARY KEY (aggregate)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The lease of the relay that publishes. One row, or none.
CREATE TABLE semel.outbox_relay (
    singleton boolean NOT NULL DEFAULT true,
    owner     text    NOT NULL,
    until     bigint  NOT NULL,

    CONSTRAINT outbox_relay_pkey PRIMARY KEY (singleton),
    CONSTRAINT outbox_relay_one CHECK (singleton)
) WITH (
    -- Written with every batch: room for the next version beside the last.
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

-- Stores a recovery point in the transaction of its phase. For adapters: returns the result, and
-- leaves the rollback to them. The row is locked until the transaction ends, so that the next attempt
-- is granted only when its recovery point is known.
--
-- A plan that is made while the table is empty must not read all of it later, in whatever session
-- it is made.
CREATE FUNCTION semel.advance(
    operation_id uuid, attempt bigint, point text, data bytea,
    OUT held text, OUT found_status text, OUT found_attempt bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET enable_seqscan = off
AS $$
DECLARE
    -- Not now(), which is when the transaction began.
    at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    UPDATE semel.operations AS o
    SET recovery_point = $3, recovery_data = $4, updated_at = at
    WHERE o.id = $1 AND o.attempt = $2 AND o.status = 'in_progress';
    IF FOUND THEN
        held := 'applied';
        RETURN;
    END IF;
    SELECT o.status, o.attempt INTO found_status, found_attempt
    FROM semel.operations AS o
    WHERE o.id = $1;
    held := 'fenced';
END
$$;

-- For applications in any language. Where the attempt no longer owns the operation it raises, so
-- that the transaction cannot commit.
CREATE FUNCTION semel.semel_advance(operation_id uuid, attempt bigint, point text, data bytea)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    ended record;
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE 'semel: operation_id and attempt are what the gateway sent along' USING ERRCODE = 'SEM02';
    END IF;
    IF coalesce($3, '') = '' THEN
        RAISE 'semel: a recovery point needs a name' USING ERRCODE = 'SEM02';
    END IF;
    ended := semel.advance($1, $2, $3, coalesce($4, ''));
    IF ended.held = 'fenced' THEN
        RAISE 'semel: attempt % of operation % does not own it (found: %); nothing may be committed', $2, $1,
            coalesce(ended.found_status || ', attempt ' || ended.found_attempt, 'no such operation')
            USING ERRCODE = 'SEM01';
    END IF;
END
$$;

-- Writes an event, unless it is there. For the store and the function below, which check it.
--
-- The lock is taken before the number: of two transactions that write events of one aggregate the
-- second gets its number after the first has ended. So within an aggregate the order of numbers is
-- the order of commits, and no smaller number appears after a greater one was read. Between
-- aggregates there is no order.
--
-- A transaction that publishes for several aggregates should do so in one order everywhere, such as
-- that of their names. Where two do it crosswise they wait for each other, and the database ends
-- that by rolling one of them back (40P01).
CREATE FUNCTION semel.publish(id uuid, kind text, aggregate text, payload bytea, at bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    -- Two aggregates with one hash wait for each other, and no more. The seed is "semel" in ASCII:
    -- it keeps the locks apart from those that an application makes of the same names.
    PERFORM pg_advisory_xact_lock(hashtextextended($3, 495622907244));
    INSERT INTO semel.outbox (id, kind, aggregate, payload, written_at)
    VALUES ($1, $2, $3, $4, coalesce($5, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
    ON CONFLICT ON CONSTRAINT outbox_pkey DO NOTHING;
END
$$;

-- Writes an event in the transaction of the change that it reports. Writing it again while it waits
-- has no effect. For applications in any language.
CREATE FUNCTION semel.semel_publish(id uuid, kind text, aggregate text, payload bytea)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    field text;
    name text;
BEGIN
    IF $1 IS NULL THEN
        RAISE 'semel: an event needs an id, the same whenever it is written' USING ERRCODE = 'SEM02';
    END IF;
    FOR field, name IN VALUES ('kind', $2), ('aggregate', $3) LOOP
        -- Control characters, and what Unicode calls white space: brokers make subjects and headers
        -- of these.
        IF name IS NULL OR octet_length(convert_to(name, 'UTF8')) NOT BETWEEN 1 AND 255
            OR name ~ '[\u0001-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'
        THEN
            RAISE 'semel: the % of an event has 1 to 255 bytes, without spaces and control characters', field
                USING ERRCODE = 'SEM02';
        END IF;
    END LOOP;
    IF octet_length($4) > 1048576 THEN
        RAISE 'semel: the payload of an event has at most 1048576 bytes' USING ERRCODE = 'SEM02';
    END IF;
    PERFORM semel.publish($1, $2, $3, coalesce($4, ''), NULL);
END
$$;

-- Whether a message is new to a consumer: then it is marked, in the transaction of its effect. Where
-- another transaction marks it at this moment, that one is waited for. The mark is a settled row of
-- the inbox, and is forgotten like any other: not before the broker has stopped to repeat.
CREATE FUNCTION semel.semel_once(consumer text, message_id text, remember_us bigint)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    field text;
    name text;
BEGIN
    FOR field, name IN VALUES ('consumer', $1), ('message', $2) LOOP
        IF name IS NULL OR octet_length(convert_to(name, 'UTF8')) NOT BETWEEN 1 AND 255 THEN
            RAISE 'semel: the name of a % has 1 to 255 bytes', field USING ERRCODE = 'SEM02';
        END IF;
    END LOOP;
    IF $3 IS NULL OR $3 NOT BETWEEN 1 AND 4611686018427387903 THEN
        RAISE 'semel: remember_us says for how many microseconds a second delivery is known'
            USING ERRCODE = 'SEM02';
    END IF;
    INSERT INTO semel.inbox (source, id, payload, received_at, due_at, forget_at)
    VALUES ('once:' || $1, $2, NULL, at, at, at + $3)
    ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
    RETURN FOUND;
END
$$;

-- Completing or advancing a record needs its fencing token, which only the executor has. Publishing
-- and marking need nothing, so these two must be granted to a user.
REVOKE EXECUTE ON FUNCTION
    semel.publish(uuid, text, text, bytea, bigint),
    semel.semel_publish(uuid, text, text, bytea),
    semel.semel_once(text, text, bigint)
FROM PUBLIC;

-- In `public`, where they are found without a prefix. They run with the application's rights, and only
-- call the functions above.
DO $do$
BEGIN
    CREATE FUNCTION public.semel_advance(operation_id uuid, attempt bigint, point text, data bytea)
    RETURNS void
    LANGUAGE sql
    AS $$ SELECT semel.semel_advance($1, $2, $3, $4) $$;
    CREATE FUNCTION public.semel_publish(id uuid, kind text, aggregate text, payload bytea)
    RETURNS void
    LANGUAGE sql
    AS $$ SELECT semel.semel_publish($1, $2, $3, $4) $$;
    CREATE FUNCTION public.semel_once(consumer text, message_id text, remember_us bigint)
    RETURNS boolean
    LANGUAGE sql
    AS $$ SELECT semel.semel_once($1, $2, $3) $$;
EXCEPTION
    WHEN insufficient_privilege OR invalid_schema_name THEN
        RAISE NOTICE 'semel_advance, semel_publish and semel_once are only in the schema semel';
END
$do$;

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
            'GRANT SELECT, INSERT, UPDATE, DELETE ON semel.outbox, semel.outbox_held, semel.outbox_relay TO %s',
            writer
        );
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION semel.publish(uuid, text, text, bytea, bigint), semel.semel_publish(uuid, text, text, bytea), semel.semel_once(text, text, bigint) TO %s',
            writer
        );
    END LOOP;
END
$do$;
