-- Deletes the records of attempts that provably had no effect. Only a first attempt without a
-- committed phase can prove that; any other is released instead. The history of such a record
-- holds refused writes at most, and is deleted with it.
DELETE FROM semel.operations
USING unnest($1::uuid[], $2::bigint[])
    AS word (id, attempt)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.attempt = 1 -- guard: an earlier attempt may have executed
  AND operations.recovery_point IS NULL -- guard: no phase committed
  AND operations.status = 'in_progress' -- guard: an unknown record is never deleted
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    semel.forget_history(operations.id)::text
