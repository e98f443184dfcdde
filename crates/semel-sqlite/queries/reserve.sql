-- Grants the first attempt under a key. The unique index is the lock: of any number of requests at
-- once one inserts, and the others insert nothing.
INSERT INTO semel_operations (
    key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, fingerprint_rules,
    owner, locked_until, replay_us, body_us, tombstone_us,
    status, attempt, created_at, updated_at, resume_us
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, 'in_progress', 1, ?15, ?15, ?16)
ON CONFLICT (key_hash) DO NOTHING
