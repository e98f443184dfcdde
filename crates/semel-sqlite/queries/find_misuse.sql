-- The misuse of one tenant and operation. Rust adds to it, with the rule for overflows.
SELECT tenant, operation, count, first_at, last_at, last_id
FROM semel_misuse
WHERE tenant = ?1
  AND operation = ?2
