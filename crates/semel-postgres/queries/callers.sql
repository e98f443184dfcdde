-- All callers under which a key is looked up.
SELECT scope, tenant, operation
FROM semel.callers
