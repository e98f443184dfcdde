-- Deletes misuse that ended long ago, oldest first.
DELETE FROM semel_misuse
WHERE (tenant, operation) IN (
    SELECT tenant, operation
    FROM semel_misuse
    WHERE last_at < ?1 -- guard: its retention ended
    ORDER BY last_at
    LIMIT ?2
)
