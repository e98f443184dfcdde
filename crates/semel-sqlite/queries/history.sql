-- The history of a record, oldest first.
SELECT seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
FROM semel_history
WHERE operation_id = ?1
ORDER BY seq
