-- What the application wrote is taken back. The savepoint itself stays, and is released next.
ROLLBACK TO semel_work
