-- Executions whose owner is silent become unknown. What can be resumed is left to whoever resumes
-- it, for as long as it says; then the longest given up is first.
UPDATE semel_operations
SET status = 'unknown', reconcile_after = ?1, reconcile_attempts = 0,
    error_code = 'in_progress_lock_expired', updated_at = ?1
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status = 'in_progress' -- guard: only an execution is lost
      AND locked_until + coalesce(resume_us, 0) <= ?1 -- guard: the owner is silent, and nobody came
    ORDER BY locked_until + coalesce(resume_us, 0)
    LIMIT ?2
)
RETURNING id, attempt
