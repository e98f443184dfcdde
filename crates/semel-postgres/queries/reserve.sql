-- Many requests to execute, in one statement: each inserts, or takes over, or is told what is
-- there. A request that none of the branches answers met another one in the same instant, and
-- is asked again: the snapshot of this statement is older than the winner's row.
--
-- A row that somebody holds is passed over, not waited for: an application may hold its own
-- in a long transaction, and nobody else's request has to wait for that.
--
-- The requests come ordered by hash, so that two of these statements wait for each other's
-- insertions in one order only.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
request AS MATERIALIZED (
    SELECT *
    FROM unnest(
        $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[],
        $8::bytea[], $9::integer[], $10::text[], $11::bigint[], $12::bigint[],
        $13::bigint[], $14::bigint[], $15::bigint[], $16::boolean[]
    ) WITH ORDINALITY AS request (
        key_hash, id, scope, tenant, operation, key,
        fingerprint, fingerprint_version, owner, lease_us, replay_us,
        body_us, tombstone_us, resume_us, begins_anew, nth
    )
),
found AS MATERIALIZED (
    SELECT request.*, operations AS record
    FROM request
    JOIN semel.operations ON operations.key_hash = request.key_hash
),
-- What a request may change: its own row, with its fingerprint, where nobody holds it.
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
      AND (operations.scope, operations.tenant, operations.key, operations.scope = 'tenant' OR operations.operation = found.operation) = (found.scope, found.tenant, found.key, true) -- guard: a hash alone is not trusted
      AND ((operations.fingerprint, operations.fingerprint_version) = (found.fingerprint, found.fingerprint_version) OR (found.nth, operations.fingerprint, operations.fingerprint_version) IN (SELECT * FROM unnest($17::bigint[], $18::bytea[], $19::integer[]))) -- guard: misuse first
      AND CASE operations.status
          WHEN 'failed_retryable' THEN true
          WHEN 'in_progress' THEN operations.locked_until <= clock.now -- guard: the owner is silent
          WHEN 'completed' THEN found.begins_anew AND operations.expires_at <= clock.now -- guard: the window is over
          WHEN 'expired' THEN found.begins_anew -- guard: only where the policy says so
          ELSE false -- guard: unknown is closed
      END
    FOR UPDATE OF operations SKIP LOCKED
),
-- The next attempt: the one before is proven not to have executed, or left a point to go on
-- from. Of any number of requests one finds the row free.
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
-- The owner is silent, and a retry noticed before the sweeper did. It may have executed, so
-- nobody executes again.
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
-- A new operation under a key whose window is over. It has a new id, so the old fence is dead.
anew AS (
    UPDATE semel.operations
    SET id = ready.id, scope = ready.scope, tenant = ready.tenant, operation = ready.operation,
        fingerprint = ready.fingerprint, fingerprint_version = ready.fingerprint_version,
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
-- The first attempt. The primary key is the lock: of any number of requests at once one
-- inserts, and all others insert nothing.
begun AS (
    INSERT INTO semel.operations (
        key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, owner,
        locked_until, resume_us, replay_us, body_us, tombstone_us, status, attempt, created_at,
        updated_at
    )
    SELECT
        key_hash, id, scope, tenant, operation, key, fingerprint, fingerprint_version, owner,
        clock.now + lease_us, resume_us, replay_us, body_us, tombstone_us, 'in_progress', 1,
        clock.now, clock.now
    FROM request
    CROSS JOIN clock
    WHERE nth NOT IN (SELECT found.nth FROM found)
    ON CONFLICT (key_hash) DO NOTHING
    RETURNING id
)
SELECT
    told.how, told.nth, told.begun, clock.now,
    (told.record).id, (told.record).scope, (told.record).tenant, (told.record).operation,
    (told.record).key, (told.record).fingerprint_version, (told.record).fingerprint,
    (told.record).status, (told.record).attempt, (told.record).owner,
    (told.record).locked_until, (told.record).resume_us, (told.record).recovery_point,
    (told.record).recovery_data, (told.record).response_status, (told.record).response_headers,
    (told.record).response_body, (told.record).schema_version, (told.record).resource_type,
    (told.record).resource_id, (told.record).error_code, (told.record).reconcile_after,
    (told.record).reconcile_attempts, (told.record).dead_lettered_at,
    (told.record).resolved_by, (told.record).replay_us, (told.record).body_us,
    (told.record).tombstone_us, (told.record).created_at, (told.record).updated_at,
    (told.record).completed_at, (told.record).expires_at, (told.record).body_expires_at,
    (told.record).purge_at,
    CASE WHEN told.how = 'lost' AND (told.record).awaited THEN pg_notify('semel', 'ended ' || (told.record).id)::text END,
    -- What is out of the ordinary is told, and what is told of an operation goes with it.
    CASE told.how
        WHEN 'again' THEN semel.tell((told.record).id, clock.now, (told.record).attempt, 'reattempted', 'client', NULL, NULL, NULL)::text
        WHEN 'resumed' THEN semel.tell((told.record).id, clock.now, (told.record).attempt, 'resumed', 'client', NULL, NULL, NULL)::text
        WHEN 'lost' THEN semel.tell((told.record).id, clock.now, (told.record).attempt, 'unknown', 'client', (told.record).error_code, NULL, NULL)::text
        WHEN 'anew' THEN semel.forget_history(told.gone)::text
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
) AS told
