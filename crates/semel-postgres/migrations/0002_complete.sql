-- The completion as a function, so that it can be part of an application's transaction:
-- the application's rows and the completion commit together, or neither does.
--
-- It runs with the rights of the user who installed it: an application needs none on Semel's tables.
-- To complete a record it needs the fencing token, which only the executing request gets.

-- For adapters: returns the result, and leaves the rollback to them.
CREATE FUNCTION semel.complete(
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
    found_record semel.operations;
BEGIN
    UPDATE semel.operations AS o
    SET status = 'completed', response_status = $3, response_headers = $4, response_body = $5,
        schema_version = $6, resource_type = $7, resource_id = $8,
        completed_at = at, updated_at = at, expires_at = at + o.replay_us,
        body_expires_at = CASE WHEN $5 IS NOT NULL AND o.body_us < o.replay_us THEN at + o.body_us END,
        error_code = NULL, dead_lettered_at = NULL
    WHERE o.id = $1 AND o.attempt = $2 AND o.status IN ('in_progress', 'unknown')
    RETURNING o.awaited INTO awaited;
    IF FOUND THEN
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

-- Header lines as Semel stores them: each name and value behind its length. A value is a text,
-- or a list of texts for a header that is repeated. What belongs to one connection, one moment
-- or one caller is left out, as the layer leaves it out.
CREATE FUNCTION semel.header_lines(headers jsonb) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog
AS $$
DECLARE
    lines bytea := '';
    name text;
    value text;
BEGIN
    IF headers IS NULL THEN
        RETURN lines;
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE 'semel: headers must be an object of names and values, such as {"content-type": "application/json"}'
            USING ERRCODE = 'SEM02';
    END IF;
    FOR name, value IN
        SELECT lower(header.key), line.value #>> '{}'
        FROM jsonb_each(headers) AS header,
            jsonb_array_elements(
                CASE jsonb_typeof(header.value)
                    WHEN 'array' THEN header.value
                    ELSE jsonb_build_array(header.value)
                END
            ) WITH ORDINALITY AS line (value, nth)
        ORDER BY lower(header.key), line.nth
    LOOP
        IF name !~ '^[!#$%&''*+.^_`|~0-9a-z-]+$' OR value IS NULL OR value ~ '[\x01-\x08\x0a-\x1f\x7f]' THEN
            RAISE 'semel: % is no header that can be sent', name USING ERRCODE = 'SEM02';
        END IF;
        CONTINUE WHEN name IN (
            'connection', 'keep-alive', 'te', 'trailer', 'transfer-encoding', 'upgrade',
            'content-length', 'date', 'age', 'via', 'server', 'server-timing', 'traceparent',
            'tracestate', 'baggage', 'retry-attempt', 'x-request-id', 'x-correlation-id',
            'x-trace-id', 'idempotency-key', 'idempotency-key-expires', 'semel-outcome',
            'semel-resource', 'set-cookie'
        ) OR name ~ '^(proxy-|access-control-|ratelimit|x-ratelimit|x-b3-)';
        lines := lines
            || int4send(octet_length(name)) || convert_to(name, 'UTF8')
            || int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8');
    END LOOP;
    RETURN lines;
END
$$;

-- For applications in any language. Where the attempt no longer owns the operation it raises, so
-- that the transaction cannot commit: another attempt executes, or executed.
CREATE FUNCTION semel.semel_complete(
    operation_id uuid, attempt integer, status integer, headers jsonb, body bytea
)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $$
DECLARE
    ended record;
BEGIN
    IF $1 IS NULL OR $2 IS NULL THEN
        RAISE 'semel: operation_id and attempt are what the gateway sent along' USING ERRCODE = 'SEM02';
    END IF;
    IF $3 IS NULL OR $3 NOT BETWEEN 200 AND 599 THEN
        RAISE 'semel: % is no status of an answer', coalesce($3::text, 'NULL') USING ERRCODE = 'SEM02';
    END IF;
    ended := semel.complete($1, $2, $3, semel.header_lines($4), coalesce($5, ''), 0, NULL, NULL);
    IF ended.held = 'fenced' THEN
        RAISE 'semel: attempt % of operation % does not own it (found: %); nothing may be committed', $2, $1,
            coalesce(ended.found_status || ', attempt ' || ended.found_attempt, 'no such operation')
            USING ERRCODE = 'SEM01';
    END IF;
END
$$;

-- In `public`, where it is found without a prefix. Users who may not write there call it with one.
DO $do$
BEGIN
    CREATE FUNCTION public.semel_complete(
        operation_id uuid, attempt integer, status integer, headers jsonb, body bytea
    )
    RETURNS void
    LANGUAGE sql
    AS $$ SELECT semel.semel_complete($1, $2, $3, $4, $5) $$;
EXCEPTION
    WHEN insufficient_privilege OR invalid_schema_name THEN
        RAISE NOTICE 'semel_complete is only in the schema semel: call semel.semel_complete';
END
$do$;

-- The public function runs as the application and only passes on.
GRANT USAGE ON SCHEMA semel TO PUBLIC;
