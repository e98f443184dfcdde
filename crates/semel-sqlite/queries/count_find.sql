-- What was counted so far of one stretch and command. The sum is made in Rust, which has the rule.
SELECT created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM semel_activity
WHERE at = ?1
  AND operation = ?2
