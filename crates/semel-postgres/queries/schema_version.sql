-- The newest migration that was applied to this database; no row where none was.
SELECT version FROM semel.migrations ORDER BY version DESC LIMIT 1
