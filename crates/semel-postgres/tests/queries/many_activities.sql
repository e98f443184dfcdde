-- Large enough that the planner has a choice.
INSERT INTO semel.activity
SELECT n, sha256(n::text::bytea), n, 1, 1, 1, 1, 1, 1, 1, 1
FROM generate_series(1, 10000) AS n
