-- The holders have proof that nothing happened, and nothing is to be remembered. Only a first
-- attempt that committed no phase can prove so much; any other is released instead. All that can
-- be told of a first attempt is that somebody else's word was refused, and that goes, too.
DELETE FROM semel.operations
USING unnest($1::uuid[], $2::bigint[])
    AS word (id, attempt)
WHERE operations.id = word.id
  AND operations.attempt = word.attempt -- guard: the fence
  AND operations.attempt = 1 -- guard: an earlier attempt may yet turn out to have executed
  AND operations.recovery_point IS NULL -- guard: a phase has committed
  AND operations.status = 'in_progress' -- guard: only an execution has a holder
RETURNING
    operations.id,
    CASE WHEN operations.awaited THEN pg_notify('semel', 'ended ' || operations.id)::text END,
    semel.forget_history(operations.id)::text
