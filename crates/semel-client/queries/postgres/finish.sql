-- Stores the final response, and returns the one that is stored.
SELECT * FROM semel.finish_intent($1, $2, $3, $4, $5, $6, $7, $8);
