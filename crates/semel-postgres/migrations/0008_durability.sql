-- An application's own transaction may run with `synchronous_commit = local` or `off`, set for its
-- role or its database. The outcome that it stores must wait for what the server is configured to
-- wait for: its client gets the response after the commit.
CREATE FUNCTION semel.commit_durably() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    RETURN NULL;
END
$$;

CREATE TRIGGER commit_durably
AFTER UPDATE ON semel.operations
FOR EACH STATEMENT
WHEN (current_setting('synchronous_commit') NOT IN ('on', 'remote_apply'))
EXECUTE FUNCTION semel.commit_durably();
