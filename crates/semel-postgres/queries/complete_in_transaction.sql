-- The completion, as part of the transaction that this is sent in.
SELECT held, found_status, found_attempt
FROM semel.complete($1, $2, $3, $4, $5, $6, $7, $8)
