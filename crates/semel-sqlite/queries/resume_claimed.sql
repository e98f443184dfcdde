-- Starts the next attempt of a record that was just claimed. The windows stay those of the
-- client's request.
UPDATE semel_operations
SET attempt = ?2, owner = ?3, locked_until = ?4, error_code = NULL, updated_at = ?5
WHERE id = ?1
