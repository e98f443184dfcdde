-- Whether this file holds a Semel schema. Also the first read of the file: it detects a damaged or
-- foreign file before anything is written to it.
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'semel_migrations'
