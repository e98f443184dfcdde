-- Ends the hold of an aggregate.
DELETE FROM semel_outbox_held
WHERE aggregate = ?1
