-- Replaces what is published. Of two processes that publish at once one finds the revision that it
-- read, and the other compares again.
UPDATE semel.contracts
SET revision = revision + 1, document = $2
WHERE revision = $1 -- guard: nothing was published since
