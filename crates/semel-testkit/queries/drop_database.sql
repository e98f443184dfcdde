-- Also ends open connections. NAME is put in, since a name cannot be a parameter.
DROP DATABASE IF EXISTS NAME WITH (FORCE)
