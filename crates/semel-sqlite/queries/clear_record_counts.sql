-- Deletes the counts of the scan before.
DELETE FROM semel_census
