-- A client that is still connected has not reported all of its commits.
SELECT count(*) FROM pg_stat_activity WHERE datname = $1
