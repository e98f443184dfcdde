-- Tells that a holder's word was refused. The row is held before, so that its history cannot go
-- until this line is in it; what has gone already is told nothing of. What a statement selects is
-- computed before its rows are locked, so the lock is taken in a part of its own.
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
