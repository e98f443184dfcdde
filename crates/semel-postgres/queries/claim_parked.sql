-- The parked messages that are due, longest due first. Run in the transaction that schedules the
-- next try of each. Rows that another worker has locked are skipped.
SELECT source, id, payload, tries, received_at
FROM semel.inbox
WHERE payload IS NOT NULL -- guard: settled messages are not tried
  AND due_at <= $1 -- guard: due
ORDER BY due_at
LIMIT $2
FOR UPDATE SKIP LOCKED
