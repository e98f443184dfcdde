-- Records that a migration was applied, in the transaction that applied it.
INSERT INTO semel.migrations (version) VALUES ($1)
