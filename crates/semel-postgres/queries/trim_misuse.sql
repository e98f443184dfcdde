-- Deletes the oldest misuse beyond the number that is kept. Skips rows that another process
-- updates at the moment: the next run deletes them.
WITH over AS MATERIALIZED (
    SELECT tenant, operation_hash
    FROM semel.misuse
    ORDER BY last_at DESC, tenant COLLATE "C" DESC, operation COLLATE "C" DESC
    OFFSET $1
),
held AS MATERIALIZED (
    SELECT misuse.tenant, misuse.operation_hash
    FROM over
    JOIN semel.misuse
      ON misuse.tenant = over.tenant
     AND misuse.operation_hash = over.operation_hash
    FOR UPDATE OF misuse SKIP LOCKED
)
DELETE FROM semel.misuse
USING held
WHERE misuse.tenant = held.tenant
  AND misuse.operation_hash = held.operation_hash
