-- Appends an entry. The primary key refuses two entries with one number.
INSERT INTO semel_history (
    operation_id, seq, at, attempt, what, actor, code, reason, evidence, evidence_hash, hash
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
