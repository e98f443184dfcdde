-- The last of the next ?2 + 1 records, and the one after it, if there is one: how far a page may
-- look. Reads only the index of the ids.
SELECT id
FROM semel_operations
WHERE id < ?1 -- guard: after the page before
ORDER BY id DESC
LIMIT 2 OFFSET ?2
