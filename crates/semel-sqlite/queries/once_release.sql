-- The marker and its effect stay, or nothing is left of them.
RELEASE semel_once
