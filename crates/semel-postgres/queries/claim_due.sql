-- The unknowns whose time to be looked at has come, longest due first; the index has them in that
-- order behind a column that is NULL in all of them. Run in the transaction
-- that schedules the next look at each; what another worker claims is passed over.
SELECT
    id, scope, tenant, operation, key, fingerprint_version, fingerprint, status, attempt,
    owner, locked_until, resume_us, recovery_point, recovery_data, response_status,
    response_headers, response_body, schema_version, resource_type, resource_id, error_code, reconcile_after,
    reconcile_attempts, dead_lettered_at, resolved_by, replay_us, body_us, tombstone_us,
    created_at, updated_at, completed_at, expires_at, body_expires_at, purge_at
FROM semel.operations
WHERE status = 'unknown' -- guard: only what is unknown is reconciled
  AND dead_lettered_at IS NULL -- guard: what waits for a person is not polled
  AND reconcile_after <= $1 -- guard: due
  AND ($2::text IS NULL OR operation = $2) -- guard: the worker's own operation
  AND NOT (operation = ANY ($3::text[])) -- guard: other workers' operations
ORDER BY dead_lettered_at, reconcile_after
LIMIT $4
FOR UPDATE SKIP LOCKED
