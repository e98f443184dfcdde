-- The server process that answers.
SELECT pg_backend_pid()
