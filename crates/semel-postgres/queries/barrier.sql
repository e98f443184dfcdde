-- Writes a record of its own to the log. When its commit has been replicated, so has every commit
-- before it, also one whose wait for the standby was cut off by a restart or a cancellation.
SELECT pg_logical_emit_message(true, 'semel', '')
