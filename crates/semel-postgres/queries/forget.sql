-- Deletes messages whose retention ended, settled or not: their senders do not repeat them any
-- more.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
due AS MATERIALIZED (
    SELECT inbox.source, inbox.id
    FROM semel.inbox
    WHERE inbox.forget_at <= (SELECT now FROM clock) -- guard: its retention ended
    ORDER BY inbox.forget_at
    LIMIT $2
    FOR UPDATE OF inbox SKIP LOCKED
)
DELETE FROM semel.inbox
USING due
WHERE inbox.source = due.source
  AND inbox.id = due.id
RETURNING inbox.id
