-- Everybody under whom a key is looked for.
SELECT scope, tenant, operation
FROM semel.callers
