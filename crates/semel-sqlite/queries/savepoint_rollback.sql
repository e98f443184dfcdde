-- Rolls back what the application wrote. The savepoint itself stays, and is released next.
ROLLBACK TO semel_work
