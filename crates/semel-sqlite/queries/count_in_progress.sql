-- Counts the records in progress, by operation. Reads the index of the leases, which holds nothing
-- else.
SELECT operation, count(*), min(created_at)
FROM semel_operations
WHERE status = 'in_progress' -- guard: only records in progress
GROUP BY operation
