-- The marker and its effect after this can be rolled back without the application's other
-- statements. `sandbox.rs` reserves the name.
SAVEPOINT semel_once
