-- Request counts of all intervals from a time on, oldest first.
SELECT at, operation, created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM semel_activity
WHERE at >= ?1 -- guard: since then
ORDER BY at, operation
