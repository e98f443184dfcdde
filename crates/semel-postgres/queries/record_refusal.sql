-- Records in the history that a holder's write was refused. Locks the row first, so that its
-- history is not deleted before this entry is written; a record that is gone gets no entry. The
-- lock is a CTE of its own, because a SELECT list is computed before its rows are locked.
WITH held AS MATERIALIZED (
    SELECT id
    FROM semel.operations
    WHERE id = $2 -- guard: one operation's history
    FOR KEY SHARE
)
SELECT semel.tell(held.id, clock.now, $3, $4, $5, $6, NULL, NULL)::text
FROM held
CROSS JOIN (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
