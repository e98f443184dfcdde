-- Lets one of several processes that start at once migrate. The number is "semel" in ASCII.
SELECT pg_advisory_xact_lock(495622907244)
