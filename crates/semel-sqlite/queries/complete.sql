-- Writes the outcome of an attempt. Also from unknown: the late owner knows what happened, and as
-- long as the attempt is current no other attempt was granted. Returns whether the record was
-- unknown: only then it has `reconcile_after`.
UPDATE semel_operations
SET status = 'completed', response_status = ?3, response_headers = ?4, response_body = ?5,
    schema_version = ?6, resource_type = ?7, resource_id = ?8,
    completed_at = ?9, updated_at = ?9, expires_at = ?9 + replay_us,
    body_expires_at = CASE WHEN ?5 IS NOT NULL AND body_us < replay_us THEN ?9 + body_us END,
    error_code = NULL, dead_lettered_at = NULL
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND status IN ('in_progress', 'unknown') -- guard: a response is never replaced
RETURNING reconcile_after IS NOT NULL
