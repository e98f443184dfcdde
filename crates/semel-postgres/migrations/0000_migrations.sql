-- Semel keeps to a schema of its own, so that it can live in an application's database.
CREATE SCHEMA IF NOT EXISTS semel;

-- Which migrations were applied when.
CREATE TABLE IF NOT EXISTS semel.migrations (
    version    bigint      PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
