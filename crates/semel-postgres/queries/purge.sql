-- Removes tombstones whose time is over, and what is told of them. A CHECK sees to it that only
-- a tombstone has one.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT operations.key_hash
    FROM semel.operations
    WHERE operations.purge_at IS NOT NULL
      AND operations.purge_at <= (SELECT now FROM clock) -- guard: the tombstone's time is over
    ORDER BY operations.purge_at
    LIMIT $2
    FOR UPDATE OF operations SKIP LOCKED
)
DELETE FROM semel.operations
USING due
WHERE operations.key_hash = due.key_hash
RETURNING operations.id, semel.forget_history(operations.id)::text
