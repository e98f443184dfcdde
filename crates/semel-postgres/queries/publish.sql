-- Writes an event in the transaction that runs this.
SELECT semel.semel_publish($1, $2, $3, $4)
