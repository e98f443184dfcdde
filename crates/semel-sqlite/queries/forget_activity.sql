-- Forgets what was counted before a time, oldest first.
DELETE FROM semel_activity
WHERE (at, operation) IN (
    SELECT at, operation
    FROM semel_activity
    WHERE at < ?1 -- guard: its time is over
    ORDER BY at, operation
    LIMIT ?2
)
