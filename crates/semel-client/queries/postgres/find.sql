-- What is known of one intent.
SELECT * FROM semel.find_intent($1);
