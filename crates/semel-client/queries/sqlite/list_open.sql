-- Open intents in the order in which they were stored, a page at a time, without their bodies.
SELECT intent, key, method, url, created_at, expires_at, is_unknown, operation_id
FROM intents
WHERE finished_at IS NULL
  AND id > coalesce((SELECT id FROM intents WHERE intent = ?1), 0)
ORDER BY id
LIMIT ?2;
