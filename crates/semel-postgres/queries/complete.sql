-- Writes the outcomes of attempts. Also from unknown: the late owner knows what happened, and as
-- long as the attempt is current no other attempt was granted. Only a record that was unknown has
-- `reconcile_after`; its late completion goes into the history.
UPDATE semel.operations
SET status = 'completed', response_status = word.status, response_headers = word.headers,
    response_body = word.body, schema_version = word.schema_version,
    resource_type = word.resource_type, resource_id = word.resource_id,
    completed_at = clock.now, updated_at = clock.now,
    expires_at = clock.now + operations.replay_us,
    body_expires_at = CASE
        WHEN word.body IS NOT NULL AND operations.body_us < operations.replay_us
            THEN clock.now + operations.body_us
    END,
    error_code = NULL, dead_lettered_at = NULL
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::integer[], $5::bytea[], $6::bytea[], $7::integer[], $8::text[], $9::text[])
    AS word (id, attempt, status, headers, body, schema_version, resource_type, resource_id)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status IN ('in_progress', 'unknown') -- guard: a response is never replaced
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    CASE
        WHEN operations.reconcile_after IS NOT NULL
            THEN semel.tell(operations.id, clock.now, operations.attempt, 'completed_late', 'executor', NULL, NULL, NULL)::text
    END
