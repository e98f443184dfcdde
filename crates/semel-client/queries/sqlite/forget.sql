-- Removes one intent, because a person asked for it: its next call is a new operation.
DELETE FROM intents
WHERE intent = ?1;
