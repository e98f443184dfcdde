-- The number of known callers. It is bounded, so this reads few pages.
SELECT count(*)
FROM semel_callers
