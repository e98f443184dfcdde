-- One more entry. Two of the same place cannot be: whoever comes second sees the first.
INSERT INTO semel_history (
    operation_id, seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
