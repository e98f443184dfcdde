-- Whose the next operations are and how they stand, in the order of their ids. Only columns that
-- lie before the bodies: those are not read.
SELECT id, scope, tenant, operation, status
FROM semel_operations
WHERE id > ?1 -- guard: each is counted once
ORDER BY id
LIMIT ?2
