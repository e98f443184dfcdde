-- The executions of one command whose owner is silent and that are made to be resumed, longest
-- silent first. Run in the transaction that gives each its next attempt, so that one completer
-- gets each.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint, status, attempt,
    owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel_operations
WHERE status = 'in_progress' -- guard: only an execution is resumed
  AND resume_us IS NOT NULL -- guard: made to be resumed
  AND locked_until <= ?1 -- guard: the owner is silent
  AND operation = ?2 -- guard: the completer's own command
ORDER BY locked_until
LIMIT ?3
