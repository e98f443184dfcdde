-- The newest record that created, or may have created, the resource. The index holds only the
-- first 255 characters of the id, so the whole id is compared as well.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel.operations
WHERE left(resource_id, 255) = left($1, 255)
  AND resource_id = $1
ORDER BY left(resource_id, 255) DESC, id DESC
LIMIT 1
