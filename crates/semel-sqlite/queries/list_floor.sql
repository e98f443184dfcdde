-- How far a list looks: the last operation of so many, and whether there is one beyond. Reads the
-- index of the ids and nothing else.
SELECT id
FROM semel_operations
WHERE id < ?1 -- guard: after the page before
ORDER BY id DESC
LIMIT 2 OFFSET ?2
