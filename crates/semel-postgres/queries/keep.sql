-- The effect and its marker are the transaction's own. Also said after an undoing, or the next one
-- of an outer effect would come to a halt here. Fails where a statement failed and nobody said so.
RELEASE SAVEPOINT semel_once
