-- Counts a stretch of operations in the order of their ids, by caller and status. With each count
-- comes where the next stretch begins: the last id of this one, if there are others beyond.
WITH stretch AS MATERIALIZED (
    SELECT id, scope, tenant, operation, status
    FROM semel.operations
    WHERE id > $1 -- guard: after the stretch before
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
    WHERE EXISTS (SELECT FROM semel.operations AS beyond WHERE beyond.id > last.id) -- guard: others beyond
)
SELECT scope, tenant, operation, status, count(*), (SELECT id FROM next)
FROM stretch
GROUP BY scope, tenant, operation, status
