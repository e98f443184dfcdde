-- The unknown records whose reconciliation is due, longest due first; the index has them in that
-- order behind a column that is NULL in all of them. Run in the transaction that schedules the
-- next reconciliation of each. Rows that another worker has locked are skipped.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint_rules, fingerprint,
    status, attempt, owner, locked_until, resume_us, recovery_point, recovery_data, response_status,
    response_headers, response_body, schema_version, resource_type, resource_id, error_code, reconcile_after,
    reconcile_attempts, dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel.operations
WHERE status = 'unknown' -- guard: only an unknown record is reconciled
  AND dead_lettered_at IS NULL -- guard: dead-lettered records are not polled
  AND reconcile_after <= $1 -- guard: due
  AND ($2::text IS NULL OR operation = $2) -- guard: the worker's own operation
  AND NOT (operation = ANY ($3::text[])) -- guard: other workers' operations
ORDER BY dead_lettered_at, reconcile_after
LIMIT $4
FOR UPDATE SKIP LOCKED
