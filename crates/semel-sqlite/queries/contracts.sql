-- What processes have published, and its revision.
SELECT revision, document
FROM semel_contracts
WHERE one = 1
