-- Removes those whose last misuse is longest ago, where there are more than are kept. What another
-- adds to at this moment is passed over: nobody waits, and the next one finds it.
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
