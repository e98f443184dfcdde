-- What requests were told in stretches that begin at a time or later. The caller sorts: the database
-- would by whatever language it was set up for.
SELECT at, operation, created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM semel.activity
WHERE at >= $1 -- guard: since then
