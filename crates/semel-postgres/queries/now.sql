-- The database's clock, or the time that a test gives.
SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
