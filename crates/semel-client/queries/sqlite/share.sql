-- Remembers that another process may send an open intent, before it does: a rejection of the first sender's request may then be
-- about the other one.
UPDATE intents
SET is_shared = 1
WHERE intent = ?1
  AND finished_at IS NULL
  AND is_shared = 0;
