-- From here on an effect can be undone, with its marker, whatever became of it.
SAVEPOINT semel_once
