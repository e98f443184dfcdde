-- Takes the database for this session until the session ends, also where its process is killed. The
-- second column says whether a store created the schema before.
SELECT pg_try_advisory_lock(7346519), to_regclass('semel.operations') IS NOT NULL
