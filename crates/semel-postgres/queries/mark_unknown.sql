-- The holders cannot say whether it happened: due for reconciliation at once. What it would have
-- created is kept, where they can name it.
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
  AND operations.status = 'in_progress' -- guard: only an execution has a holder
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    semel.tell(operations.id, clock.now, operations.attempt, 'unknown', 'executor', operations.error_code, NULL, NULL)::text
