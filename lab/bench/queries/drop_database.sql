-- With FORCE: a pool that was just dropped may still be saying goodbye. This also makes Postgres
-- write a checkpoint, so that the next measurement does not pay for the pages of this one.
DROP DATABASE IF EXISTS semel_bench WITH (FORCE)
