-- Ends a relay's lease, so that the next relay need not wait for it to expire.
DELETE FROM semel.outbox_relay
WHERE owner = $1 -- guard: one relay's own lease
