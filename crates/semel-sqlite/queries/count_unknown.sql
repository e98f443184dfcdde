-- Counts the unknown records, by operation, and those that are dead-lettered. Reads the index of
-- the unknown records, which holds nothing else.
SELECT operation, count(*), min(created_at), count(dead_lettered_at),
    min(CASE WHEN dead_lettered_at IS NOT NULL THEN created_at END)
FROM semel_operations
WHERE status = 'unknown' -- guard: only unknown records
GROUP BY operation
