-- Stores a new intent. No row: it is known already, or as many are open as may be. A known intent keeps its key, so two processes
-- that begin at once send one key.
INSERT INTO intents (intent, key, fingerprint, method, url, headers, body, created_at, expires_at, key_form)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?11
WHERE (SELECT count(*) FROM intents WHERE finished_at IS NULL) < ?10 -- guard: bounded
ON CONFLICT (intent) DO NOTHING;
