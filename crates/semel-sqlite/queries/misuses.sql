-- Tenants that reused keys with another fingerprint, the latest first, then by name.
SELECT tenant, operation, count, first_at, last_at, last_id
FROM semel_misuse
ORDER BY last_at DESC, tenant, operation
LIMIT ?1
