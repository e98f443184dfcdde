-- Adds callers that are new, as far as there is room. Run in a transaction that holds the lock of
-- lock_callers.sql, so that the count here is final.
INSERT INTO semel.callers (scope, tenant, operation_hash, operation)
SELECT met.scope, met.tenant, sha256(convert_to(met.operation, 'UTF8')), met.operation
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY
    AS met (scope, tenant, operation, nth)
WHERE NOT EXISTS (
    SELECT
    FROM semel.callers AS known
    WHERE known.tenant = met.tenant
      AND known.operation_hash = sha256(convert_to(met.operation, 'UTF8'))
      AND known.scope = met.scope
)
ORDER BY met.nth
LIMIT greatest(0, $4::bigint - (SELECT count(*) FROM semel.callers))
