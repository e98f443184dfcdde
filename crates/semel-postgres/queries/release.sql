-- Releases attempts that provably had no effect: the next request executes. Also from unknown: the
-- late owner knows that nothing happened, and as long as the attempt is current no other attempt was
-- granted.
UPDATE semel.operations
SET status = 'failed_retryable', error_code = word.code, updated_at = clock.now,
    expires_at = clock.now + operations.replay_us, dead_lettered_at = NULL
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::text[])
    AS word (id, attempt, code)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status IN ('in_progress', 'unknown') -- guard: only an open outcome is released
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    semel.tell(operations.id, clock.now, operations.attempt, 'released', 'executor', operations.error_code, NULL, NULL)::text
