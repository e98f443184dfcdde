-- The end of an execution, by its holder. From unknown too: the late owner knows the truth,
-- and as long as the attempt is its own nobody else was let in. Says whether it was unknown: an
-- attempt begins without a time to be looked at, and gets one when it is lost.
UPDATE semel_operations
SET status = 'completed', response_status = ?3, response_headers = ?4, response_body = ?5,
    schema_version = ?6, resource_type = ?7, resource_id = ?8,
    completed_at = ?9, updated_at = ?9, expires_at = ?9 + replay_us,
    body_expires_at = CASE WHEN ?5 IS NOT NULL AND body_us < replay_us THEN ?9 + body_us END,
    error_code = NULL, dead_lettered_at = NULL
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status IN ('in_progress', 'unknown') -- guard: an answer is never replaced
RETURNING reconcile_after IS NOT NULL
