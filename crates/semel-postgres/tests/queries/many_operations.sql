-- Large enough that the planner has a choice.
INSERT INTO semel.operations (
    key_hash, id, scope, tenant, operation, key, fingerprint_version, fingerprint, status,
    attempt, owner, locked_until, response_status, response_headers, schema_version,
    reconcile_after, reconcile_attempts, replay_us, body_us, created_at, updated_at,
    completed_at, expires_at
)
SELECT
    md5(n::text)::uuid, ('018f0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
    'operation', 'tenant-' || n % 100, 'operation-' || n % 7, 'key-' || n, 1,
    decode(repeat('01', 32), 'hex'), status, 1, 'test', n, answer, headers, answer,
    due, due, 1, 1, n, n, n, n
FROM generate_series(1, 30000) AS n
CROSS JOIN LATERAL (
    SELECT CASE n % 100 WHEN 0 THEN 'unknown' WHEN 1 THEN 'in_progress' ELSE 'completed' END,
        CASE WHEN n % 100 > 1 THEN 200 END, CASE WHEN n % 100 > 1 THEN ''::bytea END,
        CASE WHEN n % 100 = 0 THEN n END
) AS state (status, answer, headers, due)
