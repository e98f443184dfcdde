-- The event that an aggregate was held back for is out of the way.
DELETE FROM semel_outbox_held
WHERE aggregate = ?1
