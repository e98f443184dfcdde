-- Records in the history that a person is about to see the stored response. Locks the row first,
-- so that neither its response nor its history is deleted before this entry is written. The lock
-- is a CTE of its own, because a SELECT list is computed before its rows are locked.
WITH held AS MATERIALIZED (
    SELECT id, attempt, error_code
    FROM semel.operations
    WHERE id = $2 -- guard: one operation's history
      AND status = 'completed' -- guard: only a completed record has a response
    FOR SHARE
)
SELECT semel.tell(held.id, clock.now, held.attempt, 'revealed', $3, held.error_code, $4, NULL)::text
FROM held
CROSS JOIN (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
