-- A marker and its effect: what comes after this can be taken back without the rest of the
-- application's statements. The name is known to `inside.rs`, which keeps others from using it.
SAVEPOINT semel_once
