-- What the application wrote stays, and is committed with the group.
RELEASE semel_work
