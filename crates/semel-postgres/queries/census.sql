-- The latest census, if there was any.
SELECT began_at, ended_at, all_callers, operations, statuses, counts
FROM semel.census
