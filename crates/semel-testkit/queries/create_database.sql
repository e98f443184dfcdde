-- From the template without connections: concurrent creations do not wait. NAME is put in,
-- since a name cannot be a parameter.
CREATE DATABASE NAME TEMPLATE template0
