-- Records that a migration was applied, in the transaction that applied it.
INSERT INTO semel_migrations (version, applied_at) VALUES (?1, ?2)
