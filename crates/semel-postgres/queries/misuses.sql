-- Tenants that reused keys with another fingerprint, the latest first.
SELECT tenant, operation, count, first_at, last_at, last_id
FROM semel.misuse
ORDER BY last_at DESC, tenant COLLATE "C", operation COLLATE "C"
LIMIT $1
