-- Nothing more is to be done with an event: only its id is kept.
UPDATE semel.inbox
SET payload = NULL
WHERE source = $1 -- guard: another sender may use the same id
  AND id = $2 -- guard: one event
