-- The newest migration that was applied to this file; no row where none was.
SELECT version FROM semel_migrations ORDER BY version DESC LIMIT 1
