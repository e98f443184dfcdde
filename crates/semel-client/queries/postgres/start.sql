-- Marks an intent as sent, before it is.
SELECT * FROM semel.start_intent($1, $2, $3);
