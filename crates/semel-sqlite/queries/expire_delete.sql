-- Ends replay windows that leave no tombstone. Run before expire.sql, which takes the rest of the
-- same batch.
DELETE FROM semel_operations
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status IN ('completed', 'failed_retryable') -- guard: unfinished records never expire
      AND expires_at <= ?1 -- guard: the replay window ended
    ORDER BY expires_at
    LIMIT ?2
)
  AND tombstone_us IS NULL -- guard: the others leave a tombstone
