-- The broker has confirmed it, so it need not be remembered. One that waits for a person stays: he
-- may have been told of it.
DELETE FROM semel_outbox
WHERE id = ?1
  AND dead_at IS NULL -- guard: a person decides
RETURNING aggregate
