-- Schedules the next reconciliation of records that were just claimed.
UPDATE semel.operations
SET reconcile_after = claimed.reconcile_after, reconcile_attempts = claimed.tries,
    updated_at = $1
FROM unnest($2::uuid[], $3::bigint[], $4::bigint[]) AS claimed (id, reconcile_after, tries)
WHERE operations.id = claimed.id
