-- What is known of one intent.
SELECT intent, key, fingerprint, method, url, headers, body, created_at, expires_at, is_unknown, operation_id,
       status, response_headers, response_body, key_form
FROM intents
WHERE intent = ?1;
