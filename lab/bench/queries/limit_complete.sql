-- A batch of completions in one commit, each guarded by its fence.
UPDATE operations
SET status = 2, response = ended.response, expires_at = $4::bigint
FROM unnest($1::bytea[], $2::integer[], $3::bytea[]) AS ended (key_hash, attempt, response)
WHERE operations.key_hash = ended.key_hash
  AND operations.attempt = ended.attempt
  AND operations.status = 1
