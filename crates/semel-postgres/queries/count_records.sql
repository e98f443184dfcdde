-- The records of some operations that a retry can still meet: unfinished ones, those within their
-- replay window, and all. Reads the whole table: it runs when a process starts with a contract that
-- leaves records behind, never for a request.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
)
SELECT
    count(*) FILTER (WHERE status IN ('in_progress', 'unknown')),
    count(*) FILTER (
        WHERE status = 'completed'
          AND expires_at > clock.now -- guard: the replay window is open
    ),
    count(*),
    max(expires_at) FILTER (
        WHERE status = 'completed'
          AND expires_at > clock.now -- guard: the last open window
    )
FROM semel.operations
CROSS JOIN clock
WHERE CASE WHEN $3::boolean THEN left(operation, length($2::text)) ELSE operation END = $2 -- guard: these operations
  AND ($4::bigint IS NULL OR fingerprint_rules = $4) -- guard: these rules
