-- The latest record counts, if there are any.
SELECT began_at, ended_at, all_callers, operations, statuses, counts
FROM semel.census
