-- How many callers are known. There is a bound, so this reads few pages.
SELECT count(*)
FROM semel_callers
