-- The records of requests whose key is not new, and the time: most are completed, and need no change.
SELECT
    key_hash,
    coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel.operations
WHERE key_hash = ANY ($2::uuid[])
