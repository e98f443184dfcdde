-- Stores the next recovery point in the transaction that runs this.
SELECT held, found_status, found_attempt
FROM semel.advance($1, $2, $3, $4)
