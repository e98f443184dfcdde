-- Removes evidence. The entry's hash stays valid, since it covers the hash of the evidence.
UPDATE semel_history
SET evidence = NULL
WHERE operation_id = ?1
  AND evidence IS NOT NULL
