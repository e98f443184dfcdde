-- The holders cannot say whether it happened: due for reconciliation at once.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
word AS MATERIALIZED (
    SELECT *
    FROM unnest($2::uuid[], $3::bigint[], $4::text[])
        AS word (id, attempt, code)
),
done AS (
    UPDATE semel.operations
    SET status = 'unknown', error_code = word.code, reconcile_after = clock.now,
        reconcile_attempts = 0, updated_at = clock.now
    FROM word
    CROSS JOIN clock
    WHERE operations.id = word.id
      AND operations.attempt = word.attempt -- guard: the fence
      AND operations.status = 'in_progress' -- guard: only an execution has a holder
    RETURNING operations.id, operations.awaited
)
SELECT id, CASE WHEN awaited THEN pg_notify('semel', 'ended ' || id)::text END
FROM done
