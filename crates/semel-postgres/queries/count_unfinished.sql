-- Counts the records in progress and unknown, by operation. Both are read from partial indexes
-- that hold nothing else, whatever the size of the table.
SELECT
    operation,
    count(*) FILTER (WHERE status = 'in_progress'),
    min(created_at) FILTER (WHERE status = 'in_progress'),
    count(*) FILTER (WHERE status = 'unknown'),
    min(created_at) FILTER (WHERE status = 'unknown'),
    count(*) FILTER (WHERE dead_lettered_at IS NOT NULL),
    min(created_at) FILTER (WHERE dead_lettered_at IS NOT NULL)
FROM (
    SELECT operation, status, dead_lettered_at, created_at
    FROM semel.operations
    WHERE status = 'in_progress'
      -- Always true; with it the planner can use the index.
      AND locked_until >= (-9223372036854775808)::bigint
    UNION ALL
    SELECT operation, status, dead_lettered_at, created_at
    FROM semel.operations
    WHERE status = 'unknown' AND reconcile_after IS NOT NULL
) AS unfinished
GROUP BY operation
