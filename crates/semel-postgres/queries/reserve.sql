-- Reserves for requests whose key exists and may be granted: each takes over the record, gets the
-- record that exists, or inserts where it is gone. A request without a row in the result met another
-- one in the same instant, and is sent again: the snapshot of this statement is older than the winner's
-- row.
--
-- Locked rows are skipped: an application may hold its own row in a long transaction, and other
-- requests must not wait for that.
--
-- The requests are ordered by hash, so that two of these statements cannot deadlock on each other's
-- insertions.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
request AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
        $9::integer[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[],
        $15::bigint[], $16::bigint[], $17::boolean[]
    ) WITH ORDINALITY AS request (
        key_hash, id, scope, tenant, operation, key,
        fingerprint, fingerprint_version, fingerprint_rules, owner, lease_us, replay_us,
        body_us, tombstone_us, resume_us, begins_anew, nth
    )
),
found AS MATERIALIZED (
    SELECT request.*, operations AS record
    FROM request
    JOIN semel.operations ON operations.key_hash = request.key_hash
),
-- The rows that a request may change: its own, with its fingerprint or past its window, and not
-- locked.
ready AS MATERIALIZED (
    SELECT
        found.*,
        operations.id AS found_id,
        CASE operations.status
            WHEN 'failed_retryable' THEN 'again'
            WHEN 'in_progress' THEN CASE WHEN found.resume_us IS NOT NULL THEN 'resumed' ELSE 'lost' END
            ELSE 'anew'
        END AS verb
    FROM found
    JOIN semel.operations ON operations.key_hash = found.key_hash
    CROSS JOIN clock
    -- Most retries end here, without a second look at the row.
    WHERE ((found.record).status <> 'completed' OR found.begins_anew)
      AND (operations.scope, operations.tenant, operations.key, operations.scope = 'tenant' OR operations.operation = found.operation) = (found.scope, found.tenant, found.key, true) -- guard: the identity matches, not only its hash
      AND (operations.status IN ('completed', 'expired') OR (operations.fingerprint, operations.fingerprint_version, operations.fingerprint_rules) = (found.fingerprint, found.fingerprint_version, found.fingerprint_rules) OR (found.nth, operations.fingerprint, operations.fingerprint_version, operations.fingerprint_rules) IN (SELECT * FROM unnest($18::bigint[], $19::bytea[], $20::integer[], $21::bigint[]))) -- guard: the fingerprint matches, unless the key starts over
      AND CASE operations.status
          WHEN 'failed_retryable' THEN true
          WHEN 'in_progress' THEN operations.locked_until <= clock.now -- guard: the lease expired
          WHEN 'completed' THEN found.begins_anew AND operations.expires_at <= clock.now -- guard: the replay window ended
          WHEN 'expired' THEN found.begins_anew -- guard: only where the policy allows it
          ELSE false -- guard: an unknown record is never granted
      END
    FOR UPDATE OF operations SKIP LOCKED
),
-- The next attempt: the one before provably did not execute, or left a recovery point. Of any
-- number of requests one finds the row free.
granted AS (
    UPDATE semel.operations
    SET status = 'in_progress', attempt = operations.attempt + 1, owner = ready.owner,
        locked_until = clock.now + ready.lease_us, resume_us = ready.resume_us,
        replay_us = ready.replay_us, body_us = ready.body_us,
        tombstone_us = ready.tombstone_us, error_code = NULL, reconcile_after = NULL,
        reconcile_attempts = NULL, updated_at = clock.now
    FROM ready
    CROSS JOIN clock
    WHERE operations.key_hash = ready.key_hash
      AND ready.verb IN ('again', 'resumed')
    RETURNING ready.nth, ready.verb, operations AS record
),
-- The lease expired, and a retry notices before the sweep. The attempt may have executed, so no
-- request executes again.
lost AS (
    UPDATE semel.operations
    SET status = 'unknown', reconcile_after = clock.now, reconcile_attempts = 0,
        error_code = 'in_progress_lock_expired', updated_at = clock.now
    FROM ready
    CROSS JOIN clock
    WHERE operations.key_hash = ready.key_hash
      AND ready.verb = 'lost'
    RETURNING ready.nth, ready.verb, operations AS record
),
-- A new record under a key whose replay window ended. It has a new id, so that the old fencing
-- token is invalid.
anew AS (
    UPDATE semel.operations
    SET id = ready.id, scope = ready.scope, tenant = ready.tenant, operation = ready.operation,
        fingerprint = ready.fingerprint, fingerprint_version = ready.fingerprint_version,
        fingerprint_rules = ready.fingerprint_rules,
        status = 'in_progress', attempt = 1, owner = ready.owner,
        locked_until = clock.now + ready.lease_us, resume_us = ready.resume_us,
        awaited = false, recovery_point = NULL, recovery_data = NULL, response_status = NULL, response_headers = NULL,
        response_body = NULL, schema_version = NULL, resource_type = NULL, resource_id = NULL,
        error_code = NULL, reconcile_after = NULL, reconcile_attempts = NULL,
        dead_lettered_at = NULL, resolved_by = NULL, replay_us = ready.replay_us,
        body_us = ready.body_us, tombstone_us = ready.tombstone_us, created_at = clock.now,
        updated_at = clock.now, completed_at = NULL, expires_at = NULL, body_expires_at = NULL,
        purge_at = NULL
    FROM ready
    CROSS JOIN clock
    WHERE operations.key_hash = ready.key_hash
      AND ready.verb = 'anew'
    RETURNING ready.nth, ready.verb, ready.found_id, operations AS record
),
-- The first attempt. The primary key is the lock: of any number of requests at once one inserts,
-- and the others insert nothing.
begun AS (
    INSERT INTO semel.operations (
        key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, fingerprint_rules, owner,
        locked_until, resume_us, replay_us, body_us, tombstone_us, status, attempt, created_at,
        updated_at
    )
    SELECT
        key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, fingerprint_rules, owner,
        clock.now + lease_us, resume_us, replay_us, body_us, tombstone_us, 'in_progress', 1,
        clock.now, clock.now
    FROM request
    CROSS JOIN clock
    WHERE nth NOT IN (SELECT found.nth FROM found)
    ON CONFLICT (key_hash) DO NOTHING
    RETURNING id
)
SELECT
    outcome.how, outcome.nth, outcome.begun, clock.now,
    (outcome.record).id, (outcome.record).scope, (outcome.record).tenant, (outcome.record).operation,
    (outcome.record).key, (outcome.record).fingerprint_version, (outcome.record).fingerprint_rules, (outcome.record).fingerprint,
    (outcome.record).status, (outcome.record).attempt, (outcome.record).owner,
    (outcome.record).locked_until, (outcome.record).resume_us, (outcome.record).recovery_point,
    (outcome.record).recovery_data, (outcome.record).response_status, (outcome.record).response_headers,
    (outcome.record).response_body, (outcome.record).schema_version, (outcome.record).resource_type,
    (outcome.record).resource_id, (outcome.record).error_code, (outcome.record).reconcile_after,
    (outcome.record).reconcile_attempts, (outcome.record).dead_lettered_at,
    (outcome.record).resolved_by, (outcome.record).replay_us, (outcome.record).body_us,
    (outcome.record).tombstone_us, (outcome.record).created_at, (outcome.record).updated_at,
    (outcome.record).completed_at, (outcome.record).expires_at, (outcome.record).body_expires_at,
    (outcome.record).purge_at,
    CASE WHEN outcome.how = 'lost' AND (outcome.record).awaited THEN pg_notify('semel', 'ended ' || (outcome.record).id)::text END,
    -- Unusual transitions go into the history; a record that is replaced loses its history.
    CASE outcome.how
        WHEN 'again' THEN semel.tell((outcome.record).id, clock.now, (outcome.record).attempt, 'reattempted', 'client', NULL, NULL, NULL)::text
        WHEN 'resumed' THEN semel.tell((outcome.record).id, clock.now, (outcome.record).attempt, 'resumed', 'client', NULL, NULL, NULL)::text
        WHEN 'lost' THEN semel.tell((outcome.record).id, clock.now, (outcome.record).attempt, 'unknown', 'client', (outcome.record).error_code, NULL, NULL)::text
        WHEN 'anew' THEN semel.forget_history(outcome.gone)::text
    END
FROM clock
CROSS JOIN (
    SELECT 'begun' AS how, NULL::bigint AS nth, id AS begun, NULL::uuid AS gone, NULL::semel.operations AS record FROM begun
    UNION ALL
    SELECT verb, nth, NULL, NULL, record FROM granted
    UNION ALL
    SELECT verb, nth, NULL, NULL, record FROM lost
    UNION ALL
    SELECT verb, nth, NULL, found_id, record FROM anew
    UNION ALL
    SELECT 'found', nth, NULL, NULL, record FROM found
) AS outcome
