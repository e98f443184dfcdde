-- The verdict is that the attempt executed: retries get the verdict's response. A reconciler often
-- does not know the resource, so the one that the executor named is kept.
UPDATE semel_operations
SET status = 'completed', response_status = ?3, response_headers = ?4, response_body = ?5,
    schema_version = ?6,
    resource_type = coalesce(?7, resource_type), resource_id = coalesce(?8, resource_id),
    completed_at = ?9, updated_at = ?9, expires_at = ?9 + replay_us,
    body_expires_at = CASE WHEN ?5 IS NOT NULL AND body_us < replay_us THEN ?9 + body_us END,
    error_code = NULL, dead_lettered_at = NULL, resolved_by = ?10
WHERE id = ?1
  AND attempt = ?2 -- guard: a verdict applies to one attempt
  AND status = 'unknown' -- guard: only an unknown record is resolved
