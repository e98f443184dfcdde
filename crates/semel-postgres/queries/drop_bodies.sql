-- Removes response bodies whose retention is shorter than the replay window. Only a
-- completed record with a body has `body_expires_at`.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.body_expires_at IS NOT NULL
      AND operations.body_expires_at <= (SELECT now FROM clock) -- guard: the body's retention ended
    ORDER BY operations.body_expires_at
    LIMIT $2
    FOR UPDATE OF operations SKIP LOCKED
)
UPDATE semel.operations
SET response_body = NULL, body_expires_at = NULL, updated_at = clock.now
FROM due
CROSS JOIN clock
WHERE operations.key_hash = due.key_hash
RETURNING operations.id
