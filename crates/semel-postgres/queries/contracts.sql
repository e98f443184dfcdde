-- What processes have published, and its revision.
SELECT revision, document
FROM semel.contracts
