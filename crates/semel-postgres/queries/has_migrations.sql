-- Whether this database has ever held a Semel schema. Read from the catalogue's tables: the
-- functions that look names up may remember, from before another process made it, that it is
-- not there.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'semel' AND tablename = 'migrations'
)
