-- The application's statements after this can be rolled back without the rest of the group.
-- `sandbox.rs` reserves the name.
SAVEPOINT semel_work
