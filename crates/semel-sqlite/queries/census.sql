-- The latest census, a row for each of its lines, or one without a line. One statement: two might
-- see two of them.
SELECT began_at, ended_at, all_callers, operation, status, count
FROM semel_census_taken
LEFT JOIN semel_census
WHERE one = 1
ORDER BY place
