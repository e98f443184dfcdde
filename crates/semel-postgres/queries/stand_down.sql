-- A relay stops: the next one that asks need not wait for it.
DELETE FROM semel.outbox_relay
WHERE owner = $1 -- guard: another relay's turn is not ended
