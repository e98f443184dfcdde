-- Stores the final response. The first one stays: two processes may finish one intent, and callers must not see two responses.
UPDATE intents
SET finished_at = ?3, status = ?4, response_headers = ?5, response_body = ?6, body = NULL
WHERE intent = ?1
  AND key = ?2 -- guard: this key
  AND finished_at IS NULL -- guard: first
  AND NOT (?7 AND is_shared); -- guard: of an earlier request
