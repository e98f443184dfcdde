-- Deletes misuse that ended long ago, oldest first.
WITH over AS MATERIALIZED (
    SELECT tenant, operation_hash
    FROM semel.misuse
    WHERE last_at < $1 -- guard: its retention ended
    ORDER BY last_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM semel.misuse
USING over
WHERE misuse.tenant = over.tenant
  AND misuse.operation_hash = over.operation_hash
RETURNING misuse.last_at
