-- The next attempt of an operation that was just claimed. The windows, and how long it may wait to
-- be resumed, are what the client's own attempt brought.
UPDATE semel_operations
SET attempt = ?2, owner = ?3, locked_until = ?4, error_code = NULL, updated_at = ?5
WHERE id = ?1
