-- Completes the record in the transaction that runs this.
SELECT held, found_status, found_attempt
FROM semel.complete($1, $2, $3, $4, $5, $6, $7, $8)
