-- Whether it is known that somebody calls something.
SELECT 1
FROM semel_callers
WHERE scope = ?1
  AND tenant = ?2
  AND operation = ?3
