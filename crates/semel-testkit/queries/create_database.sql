-- From the template that nobody connects to: others that are made now do not wait. NAME is put in,
-- since a name cannot be a parameter.
CREATE DATABASE NAME TEMPLATE template0
