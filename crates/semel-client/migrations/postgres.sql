-- The journal of semel-client, for clients in any language. Safe to run again. It needs the right to create a schema, or, where `semel`
-- exists already, to create in it; it shares the schema with Semel's store and does not touch its tables.
--
-- The functions run with the rights of their owner, and wait ten seconds for a row that another transaction holds. An application needs `USAGE` on the schema, and
-- `EXECUTE` on the functions: GRANT EXECUTE ON FUNCTION semel.intend, semel.note_intent, … TO app.
DO $do$
BEGIN
    -- Several processes may install at once.
    PERFORM pg_advisory_xact_lock(1397050691);
    IF to_regnamespace('semel') IS NULL THEN
        CREATE SCHEMA semel;
    END IF;
END
$do$;

-- One row per intent. Times are microseconds since the Unix epoch.
CREATE TABLE IF NOT EXISTS semel.intents (
    -- Open intents are finished in the order in which they were stored.
    id               bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    intent           text    NOT NULL UNIQUE CHECK (octet_length(intent) BETWEEN 1 AND 255),
    key              text    NOT NULL UNIQUE,
    -- The header with it, once a client has sent it: `idempotency-key: "{key}"`. In another form it would be another key.
    key_form         text,
    fingerprint      bytea   NOT NULL,
    method           text    NOT NULL,
    url              text    NOT NULL,
    -- [["name", "value"], …] without credentials.
    headers          jsonb   NOT NULL CHECK (jsonb_typeof(headers) = 'array'),
    -- NULL once the intent is finished: it is never sent again.
    body             bytea,
    created_at       bigint  NOT NULL,
    -- Until when the server knows the key. Nothing is sent after it.
    expires_at       bigint  NOT NULL,
    -- Whether a client may have sent it. An intent that an application stored in a transaction was not.
    is_sent          boolean NOT NULL,
    -- Whether another client than the first may have sent it, too.
    is_shared        boolean NOT NULL DEFAULT false,
    -- Whether the server said that the outcome is unknown, and of which operation.
    is_unknown       boolean NOT NULL DEFAULT false,
    operation_id     text,
    finished_at      bigint,
    status           integer,
    response_headers jsonb,
    -- NULL in a finished intent: the response was over the bound.
    response_body    bytea,
    CHECK ((finished_at IS NULL) = (status IS NULL)),
    CHECK ((finished_at IS NULL) = (response_headers IS NULL)),
    CHECK (finished_at IS NOT NULL OR response_body IS NULL),
    CHECK ((finished_at IS NULL) = (body IS NOT NULL))
);

CREATE INDEX IF NOT EXISTS open_intents ON semel.intents (id) WHERE finished_at IS NULL;
CREATE INDEX IF NOT EXISTS finished_intents ON semel.intents (finished_at) WHERE finished_at IS NOT NULL;

-- A commit that is not on the disk would lose the key that was sent.
CREATE OR REPLACE FUNCTION semel.require_durable_commit() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

-- What identifies a request: SHA-256 over method, URL, content type and body, each after its length. Every client computes the same.
CREATE OR REPLACE FUNCTION semel.request_fingerprint(method text, url text, headers jsonb, body bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog
AS $$
    SELECT sha256(string_agg(int8send(octet_length(field.bytes)) || field.bytes, '' ORDER BY field.nth))
    FROM (VALUES
        (1, convert_to('semel-intent-1', 'UTF8')),
        (2, convert_to($1, 'UTF8')),
        (3, convert_to($2, 'UTF8')),
        (4, convert_to(coalesce((
            SELECT line.value ->> 1
            FROM jsonb_array_elements($3) WITH ORDINALITY AS line (value, nth)
            WHERE lower(line.value ->> 0) = 'content-type'
            ORDER BY line.nth
            LIMIT 1
        -- A character for each byte, as in all headers of the journal.
        ), ''), 'LATIN1')),
        (5, $4)
    ) AS field (nth, bytes)
$$;

-- Stores an intent with a random key, in the caller's transaction, and returns what is known of it. The URL is spelled as the URL
-- Standard serialises it (`https://api.example/`, not `https://api.example`).
--
-- A client that sends it next says so with `sending`, and how with `key_form`. Then `is_sent` of the result is whether it may have been sent before.
--
-- Credentials are not stored: a header with a usual name of one is, but not its value, and the client that sends it has to have it.
--
-- SEM03: the intent is known with another request. SEM04: as many intents are open as may be. SEM05: the URL has credentials, or the
-- headers have the key, which is random.
CREATE OR REPLACE FUNCTION semel.intend(
    intent text, method text, url text, headers jsonb DEFAULT '[]', body bytea DEFAULT '',
    lifetime interval DEFAULT '24 hours', max_open bigint DEFAULT 50000, now_us bigint DEFAULT NULL, sending boolean DEFAULT false,
    key_form text DEFAULT NULL
)
RETURNS semel.intents
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '10s'
AS $$
DECLARE
    now_at bigint := coalesce($8, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    lines jsonb := $4;
    content bytea := coalesce($5, '');
    print bytea;
    stored semel.intents;
    is_new boolean := false;
BEGIN
    PERFORM semel.require_durable_commit();
    IF jsonb_typeof(lines) = 'object' THEN
        SELECT coalesce(jsonb_agg(jsonb_build_array(lower(pair.key), pair.value)), '[]') INTO lines
        FROM jsonb_each_text($4) AS pair;
    END IF;
    -- A client that sends it has done both, with the names of its own options.
    IF NOT $9 THEN
        IF $3 ~ '^[^/?#]*[/\\]+[^/\\?#]*@' THEN
            RAISE 'semel: the URL has credentials, and the journal keeps none: send them in a header' USING ERRCODE = 'SEM05';
        END IF;
        IF EXISTS (SELECT FROM jsonb_array_elements(lines) AS line WHERE lower(line ->> 0) = 'idempotency-key') THEN
            RAISE 'semel: the client sends the header idempotency-key itself: remove it' USING ERRCODE = 'SEM05';
        END IF;
        SELECT coalesce(jsonb_agg(
            CASE WHEN lower(line.value ->> 0)
                IN ('authorization', 'cookie', 'proxy-authorization', 'x-api-key', 'x-auth-token')
            THEN jsonb_build_array(line.value -> 0, '') ELSE line.value END
            ORDER BY line.nth
        ), '[]') INTO lines
        FROM jsonb_array_elements(lines) WITH ORDINALITY AS line (value, nth);
    END IF;
    print := semel.request_fingerprint($2, $3, lines, content);
    -- A row that vanishes between the two statements was pruned or forgotten: then it is stored anew.
    LOOP
        SELECT * INTO stored FROM semel.intents AS known WHERE known.intent = $1;
        IF NOT FOUND THEN
            IF (SELECT count(*) FROM (
                SELECT FROM semel.intents AS known WHERE known.finished_at IS NULL LIMIT $7
            ) AS counted) >= $7 THEN
                RAISE 'semel: % intents are open, and no more may be: finish or forget some', $7 USING ERRCODE = 'SEM04';
            END IF;
            INSERT INTO semel.intents AS known
                (intent, key, fingerprint, method, url, headers, body, created_at, expires_at, is_sent, key_form)
            VALUES
                ($1, gen_random_uuid()::text, print, $2, $3, lines, content, now_at,
                 now_at + (extract(epoch FROM $6) * 1000000)::bigint, $9, $10)
            ON CONFLICT ON CONSTRAINT intents_intent_key DO NOTHING
            RETURNING * INTO stored;
            is_new := FOUND;
        END IF;
        EXIT WHEN stored.id IS NOT NULL;
    END LOOP;
    IF stored.fingerprint <> print THEN
        RAISE 'semel: the intent % is known with another request: use a new intent for a new operation', $1
            USING ERRCODE = 'SEM03';
    END IF;
    IF is_new THEN
        stored.is_sent := false;
    ELSIF $9 THEN
        stored := semel.start_intent($1, stored.key, $10);
    END IF;
    RETURN stored;
END
$$;

-- Marks an intent as sent, before a client sends it, and as shared, if it was. The first client fixes the form of the key, and its
-- lifetime begins: no server has seen it before. `is_sent` of the result is whether it may have been sent
-- before: of two clients that start at once, one gets false.
CREATE OR REPLACE FUNCTION semel.start_intent(intent text, key text, key_form text DEFAULT NULL) RETURNS semel.intents
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '10s'
AS $$
DECLARE
    now_at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    stored semel.intents;
BEGIN
    PERFORM semel.require_durable_commit();
    UPDATE semel.intents AS known
    SET is_sent = true, is_shared = known.is_sent, key_form = coalesce(known.key_form, $3),
        expires_at = CASE WHEN known.is_sent THEN known.expires_at ELSE now_at + known.expires_at - known.created_at END
    WHERE known.intent = $1 AND known.key = $2 AND known.finished_at IS NULL AND NOT known.is_shared
    RETURNING * INTO stored;
    IF FOUND THEN
        stored.is_sent := stored.is_shared;
    ELSE
        SELECT * INTO stored FROM semel.intents AS known WHERE known.intent = $1 AND known.key = $2;
    END IF;
    RETURN stored;
END
$$;

-- Remembers what a response said before the call ends: how long the key is known, and that the outcome is unknown.
CREATE OR REPLACE FUNCTION semel.note_intent(
    intent text, key text, expires_at bigint, is_unknown boolean, operation_id text
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '10s'
AS $$
BEGIN
    PERFORM semel.require_durable_commit();
    UPDATE semel.intents AS known
    SET expires_at = least(known.expires_at, $3),
        is_unknown = known.is_unknown OR $4,
        operation_id = coalesce($5, known.operation_id)
    WHERE known.intent = $1 AND known.key = $2 AND known.finished_at IS NULL;
END
$$;

-- Stores the final response and returns the stored one. The first one stays: two processes may finish one intent, and callers must not
-- see two responses. With `unless_shared` an intent that another client may have sent stays open: the response may be about their
-- request. Also removes a few intents that were finished before `prune_before`.
CREATE OR REPLACE FUNCTION semel.finish_intent(
    intent text, key text, status integer, headers jsonb, body bytea, prune_before bigint, now_us bigint DEFAULT NULL,
    unless_shared boolean DEFAULT false
)
RETURNS semel.intents
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '10s'
AS $$
DECLARE
    now_at bigint := coalesce($7, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
    stored semel.intents;
BEGIN
    PERFORM semel.require_durable_commit();
    UPDATE semel.intents AS known
    SET finished_at = now_at, status = $3, response_headers = $4, response_body = $5, body = NULL
    WHERE known.intent = $1 AND known.key = $2 AND known.finished_at IS NULL AND NOT ($8 AND known.is_shared);
    SELECT * INTO stored FROM semel.intents AS known WHERE known.intent = $1 AND known.key = $2;
    DELETE FROM semel.intents AS old
    WHERE old.id IN (
        SELECT finished.id FROM semel.intents AS finished
        WHERE finished.finished_at <= $6
        ORDER BY finished.finished_at
        LIMIT 10
        FOR UPDATE SKIP LOCKED
    );
    RETURN stored;
END
$$;

-- Open intents in the order in which they were stored, after a certain one.
CREATE OR REPLACE FUNCTION semel.open_intents(after_intent text DEFAULT NULL, max_rows integer DEFAULT 100)
RETURNS SETOF semel.intents
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
    SELECT open.*
    FROM semel.intents AS open
    WHERE open.finished_at IS NULL
      AND open.id > coalesce((SELECT known.id FROM semel.intents AS known WHERE known.intent = $1), 0)
    ORDER BY open.id
    LIMIT $2
$$;

-- What is known of one intent.
CREATE OR REPLACE FUNCTION semel.find_intent(intent text) RETURNS SETOF semel.intents
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$ SELECT known.* FROM semel.intents AS known WHERE known.intent = $1 $$;

-- Removes one intent, because a person asked for it: its next call is a new operation.
CREATE OR REPLACE FUNCTION semel.forget_intent(intent text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '10s'
AS $$
BEGIN
    DELETE FROM semel.intents AS known WHERE known.intent = $1;
    RETURN FOUND;
END
$$;

-- Journals hold requests and responses: only the owner, and roles to which it grants it, may read or write them.
REVOKE ALL ON FUNCTION
    semel.intend, semel.start_intent, semel.note_intent, semel.finish_intent, semel.open_intents, semel.find_intent,
    semel.forget_intent
    FROM PUBLIC;
