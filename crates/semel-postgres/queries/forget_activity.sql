-- Deletes request counts that are too old for every chart, oldest first.
WITH over AS MATERIALIZED (
    SELECT at, operation_hash
    FROM semel.activity
    WHERE at < $1 -- guard: its retention ended
    ORDER BY at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
DELETE FROM semel.activity
USING over
WHERE activity.at = over.at
  AND activity.operation_hash = over.operation_hash
RETURNING activity.at
