-- What autovacuum would do in a while, it does not have to do while we measure.
VACUUM (ANALYZE)
