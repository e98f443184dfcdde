-- What the planner knows is up to date, and so is the visibility map.
VACUUM ANALYZE
