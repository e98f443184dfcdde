-- Whether a caller is known.
SELECT 1
FROM semel_callers
WHERE scope = ?1
  AND tenant = ?2
  AND operation = ?3
