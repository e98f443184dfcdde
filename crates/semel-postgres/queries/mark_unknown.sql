-- Marks attempts whose effect the holder does not know; reconciliation is due at once. Keeps the
-- resource that the attempt may have created, where the holder names it.
UPDATE semel.operations
SET status = 'unknown', error_code = word.code, reconcile_after = clock.now,
    reconcile_attempts = 0, updated_at = clock.now,
    resource_type = coalesce(word.resource_type, operations.resource_type),
    resource_id = coalesce(word.resource_id, operations.resource_id)
FROM (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
CROSS JOIN unnest($2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[])
    AS word (id, attempt, code, resource_type, resource_id)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.status = 'in_progress' -- guard: only a record in progress has a holder
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    semel.tell(operations.id, clock.now, operations.attempt, 'unknown', 'executor', operations.error_code, NULL, NULL)::text
