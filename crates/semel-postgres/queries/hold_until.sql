-- Until when an aggregate is held back. The delay is the pure function's: it depends on the event.
INSERT INTO semel.outbox_held AS held (aggregate, until, reason)
VALUES ($1, $2, $3)
ON CONFLICT (aggregate) DO UPDATE
SET until = excluded.until, reason = excluded.reason
