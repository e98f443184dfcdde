-- Marks records whose lease expired as unknown, longest expired first. A record that can be
-- resumed is left alone until its time for that is over.
UPDATE semel_operations
SET status = 'unknown', reconcile_after = ?1, reconcile_attempts = 0,
    error_code = 'in_progress_lock_expired', updated_at = ?1
WHERE seq IN (
    SELECT seq
    FROM semel_operations
    WHERE status = 'in_progress' -- guard: only a record in progress
      AND locked_until + coalesce(resume_us, 0) <= ?1 -- guard: the lease expired, and the time to resume is over
    ORDER BY locked_until + coalesce(resume_us, 0)
    LIMIT ?2
)
RETURNING id, attempt
