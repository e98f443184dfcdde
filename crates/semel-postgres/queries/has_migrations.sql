-- Whether this database has ever held a Semel schema.
SELECT to_regclass('semel.migrations') IS NOT NULL
