-- Caller and status of the next records, in the order of their ids. Selects only columns that are
-- stored before the bodies, so that these are not read.
SELECT id, scope, tenant, operation, status
FROM semel_operations
WHERE id > ?1 -- guard: after the batch before
ORDER BY id
LIMIT ?2
