-- As new, but for the schema.
TRUNCATE semel.operations, semel.history, semel.inbox, semel.outbox, semel.outbox_held, semel.outbox_relay,
    semel.activity, semel.misuse, semel.callers, semel.census, semel.census_taker
