-- Whether a message is new to a consumer, as part of the transaction that this is sent in.
SELECT semel.semel_once($1, $2, $3)
