-- Of any number of processes that start at once one migrates. The number is "semel" in ASCII.
SELECT pg_advisory_xact_lock(495622907244)
