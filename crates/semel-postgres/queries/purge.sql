-- Deletes tombstones whose retention ended, and their history. A CHECK allows `purge_at` only on a
-- tombstone.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.purge_at IS NOT NULL
      AND operations.purge_at <= (SELECT now FROM clock) -- guard: the tombstone's retention ended
    ORDER BY operations.purge_at
    LIMIT $2
    FOR UPDATE OF operations SKIP LOCKED
)
DELETE FROM semel.operations
USING due
WHERE operations.key_hash = due.key_hash
RETURNING operations.id, semel.forget_history(operations.id)::text
