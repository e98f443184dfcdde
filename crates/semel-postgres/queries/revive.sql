-- A person says that an event is to be tried again, in its old place and as if for the first time.
UPDATE semel.outbox
SET dead_at = NULL, reason = NULL, tries = 0
WHERE id = $1
  AND dead_at IS NOT NULL -- guard: what waits to be published is left as it is
RETURNING id
