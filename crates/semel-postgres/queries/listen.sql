-- Ends that somebody waits for, and erasures.
LISTEN semel
