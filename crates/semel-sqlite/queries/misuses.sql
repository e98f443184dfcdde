-- Who used keys for something else, the latest first; of those at once, by name.
SELECT tenant, operation, count, first_at, last_at, last_id
FROM semel_misuse
ORDER BY last_at DESC, tenant, operation
LIMIT ?1
