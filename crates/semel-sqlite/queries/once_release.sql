-- Keeps the marker and its effect, or removes the savepoint after they were rolled back.
RELEASE semel_once
