-- Who calls what.
SELECT scope, tenant, operation
FROM semel_callers
