-- Completed operations as the store itself would have left them, but thousands to a statement.
INSERT INTO semel.operations (
    key_hash, id, scope, tenant, operation, key, fingerprint_version, fingerprint, status,
    attempt, owner, locked_until, response_status, response_headers, response_body,
    schema_version, replay_us, body_us, tombstone_us, created_at, updated_at, completed_at,
    expires_at
)
SELECT filled.key_hash, filled.id, 'operation', $4, $5, filled.key, 1, $6, 'completed',
    1, 'host-1/12345', $7, 201, $8, $9,
    0, 86400000000, 86400000000, 2592000000000, $7, $7, $7,
    $7 + 86400000000
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS filled (key_hash, id, key)
