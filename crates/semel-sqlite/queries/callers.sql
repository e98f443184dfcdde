-- All known callers.
SELECT scope, tenant, operation
FROM semel_callers
