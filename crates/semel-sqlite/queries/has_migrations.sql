-- Whether this file has ever held a Semel schema. Also the first real read of the file, so
-- a damaged or foreign one is noticed here, before anything is written to it.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'semel_migrations'
