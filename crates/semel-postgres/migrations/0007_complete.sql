-- `semel_complete` also takes the schema version of the response, and the resource that was created.
-- The new arguments have defaults, so calls with five arguments work as before.

-- As before, and the header of the schema version is left out: it is an argument here.
CREATE OR REPLACE FUNCTION semel.header_lines(headers jsonb) RETURNS bytea
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
            'semel-resource', 'semel-schema-version', 'set-cookie'
        ) OR name ~ '^(proxy-|access-control-|ratelimit|x-ratelimit|x-b3-)';
        lines := lines
            || int4send(octet_length(name)) || convert_to(name, 'UTF8')
            || int4send(octet_length(convert_to(value, 'UTF8'))) || convert_to(value, 'UTF8');
    END LOOP;
    RETURN lines;
END
$$;

-- Beside the old function, a call with five arguments would be ambiguous.
DROP FUNCTION semel.semel_complete(uuid, integer, integer, jsonb, bytea);

-- For applications in any language. Where the attempt no longer owns the operation it raises, so
-- that the transaction cannot commit: another attempt executes, or executed.
CREATE FUNCTION semel.semel_complete(
    operation_id uuid, attempt integer, status integer, headers jsonb, body bytea,
    schema_version integer DEFAULT 0, resource_type text DEFAULT NULL, resource_id text DEFAULT NULL
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
    IF $6 NOT BETWEEN 0 AND 65535 THEN
        RAISE 'semel: % is no schema version: use 0 to 65535', $6 USING ERRCODE = 'SEM02';
    END IF;
    IF ($7 IS NULL) <> ($8 IS NULL)
        OR octet_length($7) NOT BETWEEN 1 AND 255 OR octet_length($8) NOT BETWEEN 1 AND 255 THEN
        RAISE 'semel: a resource has a type and an id of 1 to 255 bytes each' USING ERRCODE = 'SEM02';
    END IF;
    ended := semel.complete($1, $2, $3, semel.header_lines($4), coalesce($5, ''), coalesce($6, 0), $7, $8);
    IF ended.held = 'fenced' THEN
        RAISE 'semel: attempt % of operation % does not own it (found: %); nothing may be committed', $2, $1,
            coalesce(ended.found_status || ', attempt ' || ended.found_attempt, 'no such operation')
            USING ERRCODE = 'SEM01';
    END IF;
END
$$;

-- In `public`, where it is found without a prefix. A user who may not write there leaves the old
-- function as it is, which passes five arguments on.
DO $do$
BEGIN
    DROP FUNCTION IF EXISTS public.semel_complete(uuid, integer, integer, jsonb, bytea);
    CREATE FUNCTION public.semel_complete(
        operation_id uuid, attempt integer, status integer, headers jsonb, body bytea,
        schema_version integer DEFAULT 0, resource_type text DEFAULT NULL, resource_id text DEFAULT NULL
    )
    RETURNS void
    LANGUAGE sql
    AS $$ SELECT semel.semel_complete($1, $2, $3, $4, $5, $6, $7, $8) $$;
EXCEPTION
    WHEN insufficient_privilege OR invalid_schema_name THEN
        RAISE NOTICE 'semel_complete with all arguments is only in the schema semel: call semel.semel_complete';
END
$do$;
