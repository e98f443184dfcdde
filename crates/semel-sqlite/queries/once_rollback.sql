-- Rolls back the marker and its effect. The savepoint itself stays, and is released next.
ROLLBACK TO semel_once
