-- What is under way or unresolved, by command. Both halves are read from indexes that hold
-- nothing else, whatever the size of the table.
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
      -- Every time there is: said so that the index is known to hold them all.
      AND locked_until >= (-9223372036854775808)::bigint
    UNION ALL
    SELECT operation, status, dead_lettered_at, created_at
    FROM semel.operations
    WHERE status = 'unknown' AND reconcile_after IS NOT NULL
) AS unfinished
GROUP BY operation
