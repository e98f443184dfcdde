-- Removes one intent, because a person asked for it.
SELECT semel.forget_intent($1);
