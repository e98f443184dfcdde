-- A relay that stops is not waited for.
DELETE FROM semel_outbox_relay
WHERE one = 1
  AND owner = ?1 -- guard: its own
