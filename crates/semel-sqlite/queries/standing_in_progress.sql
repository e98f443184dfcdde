-- What is under way, by command. Reads the index of the leases, which holds nothing else.
SELECT operation, count(*), min(created_at)
FROM semel_operations
WHERE status = 'in_progress' -- guard: only what is under way
GROUP BY operation
