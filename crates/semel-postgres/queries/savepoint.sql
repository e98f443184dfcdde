-- The effect and its marker after this can be rolled back without the rest of the transaction.
SAVEPOINT semel_once
