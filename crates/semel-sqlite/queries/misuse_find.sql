-- What is known so far of one tenant and command. The sum is made in Rust, which has the rule.
SELECT tenant, operation, count, first_at, last_at, last_id
FROM semel_misuse
WHERE tenant = ?1
  AND operation = ?2
