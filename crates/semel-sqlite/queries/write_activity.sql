-- Writes the request counts of one interval and operation.
INSERT OR REPLACE INTO semel_activity (
    at, operation, created, replayed, in_progress, misuse, retried, unknown, expired, failed
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
