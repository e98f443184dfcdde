-- Ends replay windows: a tombstone without the response stays.
UPDATE semel_operations
SET status = 'expired', purge_at = ?1 + tombstone_us, updated_at = ?1,
    response_status = NULL, response_headers = NULL, response_body = NULL,
    schema_version = NULL, body_expires_at = NULL, recovery_point = NULL, recovery_data = NULL
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status IN ('completed', 'failed_retryable') -- guard: unfinished records never expire
      AND expires_at <= ?1 -- guard: the replay window ended
    ORDER BY expires_at
    LIMIT ?2
)
