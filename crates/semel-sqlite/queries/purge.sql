-- Deletes tombstones whose retention ended. A CHECK allows `purge_at` only on a tombstone.
DELETE FROM semel_operations
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE purge_at <= ?1 -- guard: the tombstone's retention ended
    ORDER BY purge_at
    LIMIT ?2
)
