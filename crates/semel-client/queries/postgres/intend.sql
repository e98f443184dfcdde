-- Stores an intent or finds it, with the client's clock.
SELECT * FROM semel.intend($1, $2, $3, $4, $5, make_interval(secs => $6), $7, $8, $9, $10);
