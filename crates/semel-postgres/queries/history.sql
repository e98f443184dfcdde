-- The history of a record, oldest first.
SELECT seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
FROM semel.history
WHERE operation_id = $1 -- guard: one operation's history
ORDER BY operation_id, seq
