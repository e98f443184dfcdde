-- Every measurement begins with an empty database of its own. The name is put in by the caller:
-- an identifier cannot be a parameter.
CREATE DATABASE semel_bench
