-- Replaces what is published. Of two processes that publish at once one finds the revision that it
-- read, and the other compares again.
UPDATE semel_contracts
SET revision = revision + 1, document = ?2
WHERE one = 1
  AND revision = ?1 -- guard: nothing was published since
