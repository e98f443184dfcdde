-- Empties every table but keeps the schema. DELETE and not TRUNCATE: the tables hold a few rows, and
-- TRUNCATE creates and syncs new files for each of them.
WITH operations AS (DELETE FROM semel.operations),
history AS (DELETE FROM semel.history),
inbox AS (DELETE FROM semel.inbox),
outbox AS (DELETE FROM semel.outbox),
outbox_held AS (DELETE FROM semel.outbox_held),
outbox_relay AS (DELETE FROM semel.outbox_relay),
activity AS (DELETE FROM semel.activity),
misuse AS (DELETE FROM semel.misuse),
callers AS (DELETE FROM semel.callers),
census AS (DELETE FROM semel.census),
contracts AS (UPDATE semel.contracts SET revision = 0, document = '{}')
DELETE FROM semel.census_taker
