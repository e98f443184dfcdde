-- Tells that a person is about to be shown the stored response. The row is held before, so that
-- its answer and its history cannot go until this line is in it: what a statement selects is
-- computed before its rows are locked, so the lock is taken in a part of its own.
WITH held AS MATERIALIZED (
    SELECT id, attempt, error_code
    FROM semel.operations
    WHERE id = $2 -- guard: one operation's history
      AND status = 'completed' -- guard: nothing else has an answer
    FOR SHARE
)
SELECT semel.tell(held.id, clock.now, held.attempt, 'revealed', $3, held.error_code, $4, NULL)::text
FROM held
CROSS JOIN (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
