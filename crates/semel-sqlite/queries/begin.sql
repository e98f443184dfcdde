-- Immediate: a transaction that takes the write lock later may fail at once, despite the busy
-- timeout.
BEGIN IMMEDIATE
