-- Removes bodies before the rest, where their time is shorter. A CHECK sees to it that only
-- a completed row with a body has such a time.
UPDATE semel_operations
SET response_body = NULL, body_expires_at = NULL, updated_at = ?1
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE body_expires_at <= ?1 -- guard: the body's time is over
    ORDER BY body_expires_at
    LIMIT ?2
)
