-- The process that serves us. Its parent is the postmaster, whose family's processor time counts.
SELECT pg_backend_pid()
