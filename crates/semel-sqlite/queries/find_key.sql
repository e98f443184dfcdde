-- As list.sql, the record under an identity's hash. The caller compares the identity in the row.
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel_operations
WHERE key_hash = ?1
