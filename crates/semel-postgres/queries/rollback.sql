-- Writes neither the application's rows nor a completion.
ROLLBACK
