-- Removes what could name a person and keeps the fact.
UPDATE semel_operations
SET response_headers = x'', response_body = NULL, body_expires_at = NULL,
    recovery_point = NULL, recovery_data = NULL, updated_at = ?2
WHERE id = ?1
  AND status = 'completed' -- guard: what is under way still needs its data
