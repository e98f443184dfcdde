-- The verdict is that the attempt executed: retries get the verdict's response. A reconciler often
-- does not know the resource, so the one that the executor named is kept.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
done AS (
    UPDATE semel.operations
    SET status = 'completed', response_status = $4, response_headers = $5, response_body = $6,
        schema_version = $7, resource_type = coalesce($8, resource_type),
        resource_id = coalesce($9, resource_id), completed_at = clock.now, updated_at = clock.now,
        expires_at = clock.now + replay_us,
        body_expires_at = CASE
            WHEN $6::bytea IS NOT NULL AND body_us < replay_us THEN clock.now + body_us
        END,
        error_code = NULL, dead_lettered_at = NULL, resolved_by = $10
    FROM clock
    WHERE id = $2
      AND attempt = $3 -- guard: a verdict applies to one attempt
      AND status = 'unknown' -- guard: only an unknown record is resolved
    RETURNING id, attempt, awaited, error_code, clock.now
)
SELECT
    id, CASE WHEN awaited THEN pg_notify('semel', 'ended ' || id)::text END,
    semel.tell(id, now, attempt, 'resolved_completed', $10, error_code, $11, $12)::text
FROM done
