-- What is unresolved, by command, and what of it waits for a person. Reads the index of the
-- unknowns, which holds nothing else.
SELECT operation, count(*), min(created_at), count(dead_lettered_at),
    min(CASE WHEN dead_lettered_at IS NOT NULL THEN created_at END)
FROM semel_operations
WHERE status = 'unknown' -- guard: only what is unresolved
GROUP BY operation
