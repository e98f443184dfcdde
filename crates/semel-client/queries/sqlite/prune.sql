-- Removes the oldest finished intents after their retention. Open ones stay, however old: a new key could execute again.
DELETE FROM intents
WHERE id IN (
    SELECT id FROM intents
    WHERE finished_at IS NOT NULL -- guard: finished
      AND finished_at <= ?1
    ORDER BY finished_at
    LIMIT ?2
);
