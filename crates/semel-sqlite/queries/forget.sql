-- Forgets the messages that no sender repeats any more, settled or not.
DELETE FROM semel_inbox
WHERE rowid IN (
    SELECT rowid
    FROM semel_inbox
    WHERE forget_at <= ?1 -- guard: its time is over
    ORDER BY forget_at
    LIMIT ?2
)
