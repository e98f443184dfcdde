-- An event, as part of the transaction that this is sent in.
SELECT semel.semel_publish($1, $2, $3, $4)
