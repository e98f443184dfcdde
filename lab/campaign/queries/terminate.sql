-- Ends some of the clients' connections, as an administrator or a failover would. Those that are
-- busy first, since ending an idle one has no effect; among these the drawn number decides.
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE backend_type = 'client backend'
  AND pid <> pg_backend_pid()
ORDER BY state IS DISTINCT FROM 'active', md5(pid::text || $2::bigint::text)
LIMIT $1
