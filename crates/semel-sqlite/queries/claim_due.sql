-- The unknown records whose reconciliation is due, longest due first. Run in the transaction that
-- schedules the next reconciliation of each, so that one worker gets each.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data,
    response_status, response_headers, response_body, schema_version,
    resource_type, resource_id, error_code, reconcile_after, reconcile_attempts,
    dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel_operations
WHERE status = 'unknown' -- guard: only an unknown record is reconciled
  AND dead_lettered_at IS NULL -- guard: dead-lettered records are not polled
  AND reconcile_after <= ?1 -- guard: due
  AND (?2 IS NULL OR operation = ?2) -- guard: the worker's own operation
  AND operation NOT IN (SELECT value FROM json_each(?4)) -- guard: other workers' operations
ORDER BY reconcile_after
LIMIT ?3
