-- Immediate: a transaction that finds out late that it must write fails at once, whatever
-- the busy timeout.
BEGIN IMMEDIATE
