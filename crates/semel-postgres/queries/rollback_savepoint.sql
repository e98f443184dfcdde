-- Rolls back the effect and its marker. The transaction can be used again even if a statement
-- failed.
ROLLBACK TO SAVEPOINT semel_once
