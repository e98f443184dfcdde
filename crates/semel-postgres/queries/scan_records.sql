-- Counts a batch of records in the order of their ids, by caller and status. Each row also has the
-- id where the next batch starts, if there are more records.
WITH stretch AS MATERIALIZED (
    SELECT id, scope, tenant, operation, status
    FROM semel.operations
    WHERE id > $1 -- guard: after the batch before
    ORDER BY id
    LIMIT $2
),
last AS MATERIALIZED (
    SELECT id
    FROM stretch
    ORDER BY id DESC
    LIMIT 1
),
next AS MATERIALIZED (
    SELECT id
    FROM last
    WHERE EXISTS (SELECT FROM semel.operations AS beyond WHERE beyond.id > last.id) -- guard: more records exist
)
SELECT scope, tenant, operation, status, count(*), (SELECT id FROM next)
FROM stretch
GROUP BY scope, tenant, operation, status
