-- Deletes the record of an attempt that provably had no effect. Only a first attempt without a
-- committed phase can prove that; any other is released instead.
DELETE FROM semel_operations
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND attempt = 1 -- guard: an earlier attempt may have executed
  AND recovery_point IS NULL -- guard: no phase committed
  AND status = 'in_progress' -- guard: an unknown record is never deleted
