-- Executions whose owner is silent become unknown, longest silent first.
UPDATE semel_operations
SET status = 'unknown', reconcile_after = ?1, reconcile_attempts = 0,
    error_code = 'in_progress_lock_expired', updated_at = ?1
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status = 'in_progress' -- guard: only an execution is lost
      AND locked_until <= ?1 -- guard: the owner is silent
    ORDER BY locked_until
    LIMIT ?2
)
RETURNING id, attempt
