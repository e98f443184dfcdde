-- The newest migration that this file has seen; no row where it has seen none.
SELECT version FROM semel_migrations ORDER BY version DESC LIMIT 1
