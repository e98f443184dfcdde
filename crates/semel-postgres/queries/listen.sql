-- Notifications of ended attempts and of erasures.
LISTEN semel
