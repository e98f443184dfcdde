-- Writes an event in a transaction of its own.
SELECT semel.publish($2, $3, $4, $5, $1)
