-- Ends a relay's lease, so that the next relay need not wait for it to expire.
DELETE FROM semel_outbox_relay
WHERE one = 1
  AND owner = ?1 -- guard: one relay's own lease
