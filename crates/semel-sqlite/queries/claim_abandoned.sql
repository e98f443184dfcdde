-- The records of one operation whose lease expired and that can be resumed, longest expired first.
-- Run in the transaction that starts the next attempt of each, so that one completer gets each.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel_operations
WHERE status = 'in_progress' -- guard: only a record in progress
  AND resume_us IS NOT NULL -- guard: only resumable records
  AND locked_until <= ?1 -- guard: the lease expired
  AND operation = ?2 -- guard: the completer's own operation
ORDER BY locked_until
LIMIT ?3
