-- Large enough that the planner has a choice.
INSERT INTO semel.misuse
SELECT n, sha256(n::text::bytea), n, 1, n, n, gen_random_uuid()
FROM generate_series(1, 10000) AS n
