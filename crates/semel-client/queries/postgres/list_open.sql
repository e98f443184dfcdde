-- Open intents in the order in which they were stored, a page at a time, without their bodies.
SELECT intent, key, method, url, created_at, expires_at, is_unknown, operation_id
FROM semel.open_intents($1, $2);
