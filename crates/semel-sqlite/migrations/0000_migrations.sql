-- Which migrations were applied when. Semel's tables carry its name, so that they can live
-- in an application's own database.
CREATE TABLE IF NOT EXISTS semel_migrations (
    version    INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;
