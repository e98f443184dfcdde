-- With FORCE: a pool that was just dropped may still be saying goodbye. This also makes Postgres
-- write a checkpoint, so that nobody pays for the pages that the one before left behind.
DROP DATABASE IF EXISTS semel_bench WITH (FORCE)
