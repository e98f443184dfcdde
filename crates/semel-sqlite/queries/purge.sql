-- Removes tombstones whose time is over. A CHECK sees to it that only a tombstone has one.
DELETE FROM semel_operations
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE purge_at <= ?1 -- guard: the tombstone's time is over
    ORDER BY purge_at
    LIMIT ?2
)
