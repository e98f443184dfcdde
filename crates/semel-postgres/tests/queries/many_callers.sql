-- Large enough that the planner has a choice.
INSERT INTO semel.callers
SELECT 'operation', n, sha256(n::text::bytea), n
FROM generate_series(1, 10000) AS n
