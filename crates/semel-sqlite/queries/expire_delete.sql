-- Ends the replay windows that are over and leave no tombstone. Run before expire.sql, which
-- takes the rest of the same batch.
DELETE FROM semel_operations
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status IN ('completed', 'failed_retryable') -- guard: nothing unfinished is pruned
      AND expires_at <= ?1 -- guard: the window is over
    ORDER BY expires_at
    LIMIT ?2
)
  AND tombstone_us IS NULL -- guard: the others leave a tombstone
