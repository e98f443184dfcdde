-- The holder has proof that nothing happened, and nothing is to be remembered. Only a first
-- attempt that committed no phase can prove so much; any other is released instead.
DELETE FROM semel_operations
WHERE id = ?1
  AND attempt = ?2 -- guard: the fence
  AND attempt = 1 -- guard: an earlier attempt may yet turn out to have executed
  AND recovery_point IS NULL -- guard: a phase has committed
  AND status = 'in_progress' -- guard: only an execution has a holder
