-- Neither the effect nor its marker, and the transaction can be used again even if a statement failed.
ROLLBACK TO SAVEPOINT semel_once
