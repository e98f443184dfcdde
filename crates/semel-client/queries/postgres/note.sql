-- Remembers what a response said before the call ends.
SELECT semel.note_intent($1, $2, $3, $4, $5);
