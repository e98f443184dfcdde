-- Ends the connections of the store that used this database before. Other test processes that only
-- look whether the database is free stay connected.
SELECT pg_terminate_backend(pid, 5000)
FROM pg_stat_activity
WHERE datname = current_database()
  AND backend_type = 'client backend'
  AND application_name <> 'semel-testkit'
