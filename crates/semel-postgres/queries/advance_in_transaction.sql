-- The next recovery point, as part of the transaction that this is sent in.
SELECT held, found_status, found_attempt
FROM semel.advance($1, $2, $3, $4)
