-- Removes what was seen and keeps that something was: the hash holds without it.
UPDATE semel_history
SET evidence = NULL
WHERE operation_id = ?1
  AND evidence IS NOT NULL
