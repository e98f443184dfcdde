-- A person says that it is to be tried again, at its old place and as if it were new.
UPDATE semel_outbox
SET dead_at = NULL, reason = NULL, tries = 0
WHERE id = ?1
  AND dead_at IS NOT NULL -- guard: only what waits for a person
