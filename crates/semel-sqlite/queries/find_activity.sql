-- The request counts of one interval and operation. Rust adds to them, with the rule for
-- overflows.
SELECT created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM semel_activity
WHERE at = ?1
  AND operation = ?2
