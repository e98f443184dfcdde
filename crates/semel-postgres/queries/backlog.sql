-- How the outbox stands. Counting stops at a bound: a long backlog can do without the work. All
-- numbers are 1 or more: said so that the indexes are known to hold them.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM semel.outbox WHERE dead_at IS NULL AND seq >= 1 ORDER BY seq LIMIT $1
    ) AS waiting),
    (SELECT written_at FROM semel.outbox WHERE dead_at IS NULL AND seq >= 1 ORDER BY seq LIMIT 1),
    (SELECT count(*) FROM (
        SELECT FROM semel.outbox WHERE dead_at IS NOT NULL AND seq >= 1 ORDER BY seq LIMIT $1
    ) AS dead)
