-- A batch of first attempts in one commit. Returns the keys that may execute.
INSERT INTO operations (key_hash, id, fingerprint, status, attempt, locked_until)
SELECT asked.key_hash, asked.id, asked.fingerprint, 1, 1, $4::bigint
FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS asked (key_hash, id, fingerprint)
ON CONFLICT DO NOTHING
RETURNING key_hash
