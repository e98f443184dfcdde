-- Deletes request counts from before a time, oldest first.
DELETE FROM semel_activity
WHERE (at, operation) IN (
    SELECT at, operation
    FROM semel_activity
    WHERE at < ?1 -- guard: its retention ended
    ORDER BY at, operation
    LIMIT ?2
)
