-- Counts what the outbox holds. Counting stops at a bound, so that a long backlog costs no more.
-- `seq >= 1` is always true; with it the planner can use the index.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM semel.outbox WHERE dead_at IS NULL AND seq >= 1 ORDER BY seq LIMIT $1
    ) AS waiting),
    (SELECT written_at FROM semel.outbox WHERE dead_at IS NULL AND seq >= 1 ORDER BY seq LIMIT 1),
    (SELECT count(*) FROM (
        SELECT FROM semel.outbox WHERE dead_at IS NOT NULL AND seq >= 1 ORDER BY seq LIMIT $1
    ) AS dead)
