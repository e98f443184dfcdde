-- Forgets those who have not done it since, longest ago first.
DELETE FROM semel_misuse
WHERE (tenant, operation) IN (
    SELECT tenant, operation
    FROM semel_misuse
    WHERE last_at < ?1 -- guard: its time is over
    ORDER BY last_at
    LIMIT ?2
)
