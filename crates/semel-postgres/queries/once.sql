-- Whether a message is new to a consumer. Writes the marker in the transaction that runs this.
SELECT semel.semel_once($1, $2, $3)
