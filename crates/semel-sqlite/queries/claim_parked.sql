-- The parked messages that are due, longest due first. Run in the transaction that schedules the
-- next try of each, so that one worker gets each.
SELECT source, id, payload, tries, received_at
FROM semel_inbox
WHERE due_at <= ?1 -- guard: due and not settled
ORDER BY due_at
LIMIT ?2
