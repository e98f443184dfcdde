-- Tells that a holder's word was refused. The row is held meanwhile, so that its history cannot
-- go before this line is in it; what has gone already is told nothing of.
SELECT semel.tell(operations.id, clock.now, $3, $4, $5, $6, NULL, NULL)::text
FROM semel.operations
CROSS JOIN (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
) AS clock
WHERE operations.id = $2 -- guard: one operation's history
FOR KEY SHARE OF operations
