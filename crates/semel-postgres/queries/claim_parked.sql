-- Events whose time to be looked at has come, longest due first. Run in the transaction that
-- schedules the next look at each; what another worker claims is passed over.
SELECT source, id, payload, tries, received_at
FROM semel.inbox
WHERE payload IS NOT NULL -- guard: what is settled is not looked at
  AND due_at <= $1 -- guard: due
ORDER BY due_at
LIMIT $2
FOR UPDATE SKIP LOCKED
