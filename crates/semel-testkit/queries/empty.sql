-- As new, but for the schema.
TRUNCATE semel.operations, semel.history, semel.inbox
