-- Read committed: under a stricter level a heartbeat in between would make the completion fail.
BEGIN ISOLATION LEVEL READ COMMITTED
