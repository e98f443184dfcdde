-- Whether this database holds a Semel schema. Reads the catalogue's tables: the name lookup
-- functions may use a cache from before another process created the schema.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'semel' AND tablename = 'migrations'
)
