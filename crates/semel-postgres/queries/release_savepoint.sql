-- Keeps the effect and its marker in the transaction. Also run after a rollback to the savepoint:
-- otherwise an outer effect would roll back to this one. Fails where a statement failed and the
-- application ignored it.
RELEASE SAVEPOINT semel_once
