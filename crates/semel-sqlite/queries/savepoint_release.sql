-- Keeps what the application wrote, to be committed with the group.
RELEASE semel_work
