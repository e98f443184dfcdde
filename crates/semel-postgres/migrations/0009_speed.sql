-- Less work for each request. The server reads the conditions of a CHECK and of a trigger anew for every
-- statement that writes: for a lone request they took more time than the write.

-- What no row may break: only a completed record has a response, and only a tombstone can be purged. The
-- store refuses a record that lacks what its status needs, and the functions below refuse arguments that
-- would make one.
ALTER TABLE semel.operations
    DROP CONSTRAINT operations_state,
    ADD CONSTRAINT operations_state CHECK (
        (status = 'completed') = (response_status IS NOT NULL)
        AND (status = 'expired') = (purge_at IS NOT NULL)
    ) NOT VALID;

-- Instead of the trigger: an application's own transaction may run with `synchronous_commit = local` or
-- `off`, and stores an outcome or a recovery point by these two functions only. Its commit must wait
-- for what the server is configured to wait for: the client gets the response after it.
DROP TRIGGER commit_durably ON semel.operations;
DROP FUNCTION semel.commit_durably();

CREATE FUNCTION semel.commit_durably() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END
$$;

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
    IF $3 IS NULL OR $4 IS NULL OR $6 IS NULL OR ($7 IS NULL) <> ($8 IS NULL) THEN
        RAISE 'semel: an outcome has a status, headers and a schema version, and a resource has a type and an id'
            USING ERRCODE = 'SEM02';
    END IF;
    PERFORM semel.commit_durably();
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

CREATE OR REPLACE FUNCTION semel.advance(
    operation_id uuid, attempt bigint, point text, data bytea,
    OUT held text, OUT found_status text, OUT found_attempt bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET enable_seqscan = off
AS $$
DECLARE
    -- Not now(), which is when the transaction began.
    at bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
BEGIN
    IF $3 IS NULL OR $4 IS NULL THEN
        RAISE 'semel: a recovery point has a name and data' USING ERRCODE = 'SEM02';
    END IF;
    PERFORM semel.commit_durably();
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
