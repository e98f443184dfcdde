-- Request counts of all intervals from a time on. The caller sorts by bytes: the database would
-- sort by the collation it was set up with.
SELECT at, operation, created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM semel.activity
WHERE at >= $1 -- guard: since then
