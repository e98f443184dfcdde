-- The marker and its effect are taken back. The savepoint itself stays, and is released next.
ROLLBACK TO semel_once
