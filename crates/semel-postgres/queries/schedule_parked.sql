-- Schedules the next try of messages that were just claimed.
UPDATE semel.inbox
SET due_at = claimed.due_at, tries = claimed.tries
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
    AS claimed (source, id, due_at, tries)
WHERE inbox.source = claimed.source
  AND inbox.id = claimed.id
