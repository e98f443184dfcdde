-- The application's own statements: what comes after this can be taken back without the rest
-- of the group. The name is known to `work.rs`, which keeps others from using it.
SAVEPOINT semel_work
