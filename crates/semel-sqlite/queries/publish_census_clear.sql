-- What the census before counted goes.
DELETE FROM semel_census
