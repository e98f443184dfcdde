-- The ends of executions, by their holders. From unknown too: the late owner knows the truth,
-- and as long as the attempt is its own nobody else was let in. Only that is told: the others
-- never had a time to be looked at.
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
  AND operations.status IN ('in_progress', 'unknown') -- guard: an answer is never replaced
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    CASE
        WHEN operations.reconcile_after IS NOT NULL
            THEN semel.tell(operations.id, clock.now, operations.attempt, 'completed_late', 'executor', NULL, NULL, NULL)::text
    END
