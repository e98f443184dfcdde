-- Whoever used the database before may not have ended yet.
SELECT pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
