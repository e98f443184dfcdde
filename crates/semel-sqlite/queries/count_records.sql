-- The records of some operations that a retry can still meet: unfinished ones, those within their
-- replay window, and all. Reads the whole table: it runs when a process starts with a contract that
-- leaves records behind, never for a request.
SELECT
    count(*) FILTER (WHERE status IN ('in_progress', 'unknown')),
    count(*) FILTER (
        WHERE status = 'completed'
          AND expires_at > ?4 -- guard: the replay window is open
    ),
    count(*),
    max(expires_at) FILTER (
        WHERE status = 'completed'
          AND expires_at > ?4 -- guard: the last open window
    )
FROM semel_operations
WHERE CASE WHEN ?2 THEN substr(operation, 1, length(?1)) ELSE operation END = ?1 -- guard: these operations
  AND (?3 IS NULL OR fingerprint_rules = ?3) -- guard: these rules
