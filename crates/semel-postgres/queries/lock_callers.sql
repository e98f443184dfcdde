-- Lets one transaction at a time add callers: two would both find room for the last one. The
-- numbers are "seml" and "call" in ASCII.
SELECT pg_advisory_xact_lock(1936026988, 1667329132)::text
