-- The latest record counts, one row for each, or one row without a count. A single statement, so
-- that all rows are of one scan.
SELECT began_at, ended_at, all_callers, operation, status, count
FROM semel_census_taken
LEFT JOIN semel_census
WHERE one = 1
ORDER BY place
