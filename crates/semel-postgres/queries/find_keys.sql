-- The records under these identity hashes. The caller compares the identity in each row.
SELECT key_hash, id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM semel.operations
WHERE key_hash = ANY ($1::uuid[])
