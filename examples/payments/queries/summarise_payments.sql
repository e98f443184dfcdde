-- Counted for tests: more executions than payments is what a gateway is there to prevent.
SELECT status, count(*), sum(executions)
FROM payments
GROUP BY status
