-- Reserves for many requests in one statement, those whose key is new: the primary key is the lock, of
-- any number of requests at once one inserts. Most requests have a new key, so this comes first;
-- `reserve_existing.sql` and `reserve.sql` are for the others.
--
-- Not ON CONFLICT, for which the server takes a lock and writes a second log record for every row. Where
-- another statement inserts one of the keys in the same instant, the primary key refuses this one, and the
-- other two statements decide for all of its requests.
--
-- The requests are ordered by hash, so that two of these statements cannot deadlock on each other's
-- insertions.
INSERT INTO semel.operations (
    key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, fingerprint_rules,
    owner, locked_until, resume_us, replay_us, body_us, tombstone_us, status, attempt, created_at,
    updated_at
)
SELECT
    key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, fingerprint_rules,
    owner, clock.now + lease_us, resume_us, replay_us, body_us, tombstone_us, 'in_progress', 1,
    clock.now, clock.now
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest(
    $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::integer[],
    $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[]
) AS request (
    key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version,
    fingerprint_rules, owner, lease_us, replay_us, body_us, tombstone_us, resume_us
)
-- Without a look first, the insertion would wait for an application's transaction that has its own row
-- locked. Not a join: a plan from when the table was empty would read all of it.
WHERE (SELECT true FROM semel.operations WHERE operations.key_hash = request.key_hash) IS NULL
RETURNING id, created_at
