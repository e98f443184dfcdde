-- The newest migration that this database has seen; no row where it has seen none.
SELECT version FROM semel.migrations ORDER BY version DESC LIMIT 1
