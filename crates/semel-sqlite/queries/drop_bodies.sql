-- Removes response bodies whose retention is shorter than the replay window. A CHECK allows
-- `body_expires_at` only on a completed row with a body.
UPDATE semel_operations
SET response_body = NULL, body_expires_at = NULL, updated_at = ?1
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE body_expires_at <= ?1 -- guard: the body's retention ended
    ORDER BY body_expires_at
    LIMIT ?2
)
