-- The history of a record, and incoming messages.

-- One row per unusual transition. Each has a hash over itself and the one before, so that a row that
-- was altered or removed is detected.
CREATE TABLE semel.history (
    operation_id  uuid   NOT NULL,
    seq           bigint NOT NULL,
    at            bigint NOT NULL,
    attempt       bigint NOT NULL,
    what          text   NOT NULL,
    actor         text   NOT NULL,
    code          text,
    reason        text,
    -- Gone once it is erased. That there was some, its hash still says.
    evidence      bytea,
    evidence_hash bytea,
    hash          bytea  NOT NULL,

    -- Of two who tell at once, one has the place; the other takes the next.
    CONSTRAINT history_pkey PRIMARY KEY (operation_id, seq),
    CONSTRAINT history_entry CHECK (
        seq >= 1
        AND octet_length(hash) = 32
        AND (evidence IS NULL OR evidence_hash IS NOT NULL)
    )
);

-- Appends one entry, in the caller's transaction. The hash is that of
-- `semel_core::history`, byte for byte: the conformance suite compares.
--
-- Its statements see what was committed until they began, also where the statement that calls
-- it is older. Where that cannot be, since the transaction is stricter, a place that was taken
-- in between is a serialization failure.
--
-- A plan that is made while the table is empty must not read all of it later, in whatever
-- session it is made.
CREATE FUNCTION semel.tell(
    operation_id uuid, at bigint, attempt bigint, what text, actor text, code text, reason text,
    evidence bytea
)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog SET enable_seqscan = off
AS $$
DECLARE
    -- Lines that change nothing are told up to here: `MAX_REMARKS`.
    max_remarks CONSTANT bigint := 200;
    evidence_hash CONSTANT bytea := sha256($8);
    last record;
    place bigint;
    text bytea;
    field bytea;
BEGIN
    LOOP
        SELECT h.seq, h.hash INTO last
        FROM semel.history AS h
        WHERE h.operation_id = $1
        ORDER BY h.seq DESC
        LIMIT 1;
        place := coalesce(last.seq, 0) + 1;
        IF place > max_remarks AND $4 IN ('asked', 'fenced') THEN
            RETURN;
        END IF;
        text := coalesce(last.hash, decode(repeat('00', 32), 'hex'))
            || uuid_send($1) || int8send(place) || int8send($2) || int8send($3);
        FOREACH field IN ARRAY ARRAY[
            convert_to($4, 'UTF8'), convert_to($5, 'UTF8'), convert_to($6, 'UTF8'),
            convert_to($7, 'UTF8'), evidence_hash
        ] LOOP
            text := text || coalesce(int4send(octet_length(field)) || field, int4send(-1));
        END LOOP;
        INSERT INTO semel.history AS h
            (operation_id, seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash)
        VALUES ($1, place, $2, $3, $4, $5, $6, $7, $8, evidence_hash, sha256(text))
        ON CONFLICT ON CONSTRAINT history_pkey DO NOTHING;
        EXIT WHEN FOUND;
    END LOOP;
END
$$;

-- Deletes the history of a record that is deleted. The caller has locked the record's row; this sees
-- all entries until now, also where the calling statement is older, so that refusals in between are
-- deleted too.
CREATE FUNCTION semel.forget_history(operation_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM semel.history AS h WHERE h.operation_id = $1;
END
$$;

-- Only the statements that change a record write its history.
REVOKE EXECUTE ON FUNCTION
    semel.tell(uuid, bigint, bigint, text, text, text, text, bytea),
    semel.forget_history(uuid)
FROM PUBLIC;

-- Incoming messages, once each. A row without a payload is settled, and only its id is kept.
CREATE TABLE semel.inbox (
    source      text   NOT NULL,
    id          text   NOT NULL,
    received_at bigint NOT NULL,
    forget_at   bigint NOT NULL,
    payload     bytea,
    due_at      bigint NOT NULL,
    tries       bigint NOT NULL DEFAULT 0,

    -- Of any number of deliveries one inserts.
    CONSTRAINT inbox_pkey PRIMARY KEY (source, id)
);

-- Messages to try, and messages to delete.
CREATE INDEX inbox_due ON semel.inbox (due_at) WHERE payload IS NOT NULL;
CREATE INDEX inbox_forget ON semel.inbox (forget_at);

-- Created resources, newest last. Only the beginning of the id: an application's id may be longer
-- than an index can hold, and the completion must be written anyway.
CREATE INDEX operations_resource ON semel.operations (left(resource_id, 255), id)
    WHERE resource_id IS NOT NULL;

-- All that is unknown: first what waits for a person, then by when it is due what is still
-- looked for.
DROP INDEX semel.operations_due;
CREATE INDEX operations_unknown ON semel.operations (dead_lettered_at, reconcile_after)
    WHERE status = 'unknown' AND reconcile_after IS NOT NULL;

-- An execution has no time to be looked at until it becomes unknown. So a completion sees from
-- the row that it comes late, and one that does not has nothing more to do.
UPDATE semel.operations SET reconcile_after = NULL, reconcile_attempts = NULL
WHERE status = 'in_progress' AND (reconcile_after, reconcile_attempts) IS DISTINCT FROM (NULL, NULL);

ALTER TABLE semel.operations
    DROP CONSTRAINT operations_state,
    ADD CONSTRAINT operations_state CHECK (
        CASE status
            -- Nobody looks for the outcome of what is under way.
            WHEN 'in_progress' THEN
                (response_status, response_headers, response_body, schema_version, reconcile_after, reconcile_attempts, dead_lettered_at, purge_at) IS NULL
            -- A completed operation has an answer, and nothing else has one. Only a stored body
            -- can be dropped.
            WHEN 'completed' THEN
                (response_status, response_headers, schema_version, completed_at, expires_at) IS NOT NULL
                AND (dead_lettered_at, purge_at) IS NULL
                AND (body_expires_at IS NULL OR response_body IS NOT NULL)
            WHEN 'failed_retryable' THEN
                expires_at IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, dead_lettered_at, purge_at) IS NULL
            -- Only what is unknown can wait for a person.
            WHEN 'unknown' THEN
                (reconcile_after, reconcile_attempts) IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, purge_at) IS NULL
            -- Only a tombstone can be purged.
            WHEN 'expired' THEN
                purge_at IS NOT NULL
                AND (response_status, response_headers, response_body, schema_version, dead_lettered_at) IS NULL
            ELSE false
        END
        AND (status = 'completed' OR body_expires_at IS NULL)
        AND attempt >= 1
        AND octet_length(fingerprint) = 32
        AND (scope = 'operation' OR scope = 'tenant')
        AND (recovery_point IS NULL) = (recovery_data IS NULL)
        AND (resource_type IS NULL) = (resource_id IS NULL)
    );

-- As before, and a late completion is recorded in the history. A refused one is not: the caller rolls
-- back, and that would remove the entry.
CREATE OR REPLACE FUNCTION semel.complete(
    operation_id uuid, attempt bigint, status integer, headers bytea, body bytea,
    schema_version integer, resource_type text, resource_id text,
    OUT held text, OUT found_status text, OUT found_attempt bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    -- Not now(), which is when the transaction began.
    at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    awaited boolean;
    late boolean;
    found_record semel.operations;
BEGIN
    UPDATE semel.operations AS o
    SET status = 'completed', response_status = $3, response_headers = $4, response_body = $5,
        schema_version = $6, resource_type = $7, resource_id = $8,
        completed_at = at, updated_at = at, expires_at = at + o.replay_us,
        body_expires_at = CASE WHEN $5 IS NOT NULL AND o.body_us < o.replay_us THEN at + o.body_us END,
        error_code = NULL, dead_lettered_at = NULL
    WHERE o.id = $1 AND o.attempt = $2 AND o.status IN ('in_progress', 'unknown')
    RETURNING o.awaited, o.reconcile_after IS NOT NULL INTO awaited, late;
    IF FOUND THEN
        IF late THEN
            PERFORM semel.tell($1, at, $2, 'completed_late', 'executor', NULL, NULL, NULL);
        END IF;
        IF awaited THEN
            PERFORM pg_notify('semel', 'ended ' || $1);
        END IF;
        held := 'applied';
        RETURN;
    END IF;
    SELECT * INTO found_record FROM semel.operations AS o WHERE o.id = $1;
    found_status := found_record.status;
    found_attempt := found_record.attempt;
    -- The same write again is a success: a commit whose answer was lost is written again.
    held := CASE
        WHEN found_record.attempt = $2 AND found_record.status = 'completed'
            AND (found_record.response_status, found_record.response_headers, found_record.response_body, found_record.schema_version, found_record.resource_type, found_record.resource_id)
                IS NOT DISTINCT FROM ($3, $4, $5, $6, $7, $8)
        THEN 'repeated'
        ELSE 'fenced'
    END;
END
$$;

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
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON semel.history, semel.inbox TO %s', writer);
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION semel.tell(uuid, bigint, bigint, text, text, text, text, bytea), semel.forget_history(uuid) TO %s',
            writer
        );
    END LOOP;
END
$do$;
