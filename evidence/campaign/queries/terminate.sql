-- Ends some of the clients' connections, chosen by chance, as an administrator or a failover would.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE backend_type = 'client backend'
  AND pid <> pg_backend_pid()
ORDER BY random()
LIMIT $1
