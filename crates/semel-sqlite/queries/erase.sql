-- Removes everything that could name a person, and keeps the record.
UPDATE semel_operations
SET response_headers = x'', response_body = NULL, body_expires_at = NULL,
    recovery_point = NULL, recovery_data = NULL, updated_at = ?2
WHERE id = ?1
  AND status = 'completed' -- guard: an unfinished record still needs its data
