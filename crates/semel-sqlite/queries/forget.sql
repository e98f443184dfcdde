-- Deletes messages that their senders no longer repeat, settled or not.
DELETE FROM semel_inbox
WHERE rowid IN (
    SELECT rowid
    FROM semel_inbox
    WHERE forget_at <= ?1 -- guard: its retention ended
    ORDER BY forget_at
    LIMIT ?2
)
