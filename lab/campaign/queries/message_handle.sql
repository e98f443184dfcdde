-- The effect of a message and the marker that it happened, in one commit: nothing for a second delivery.
INSERT INTO campaign_messages (id, is_effect)
SELECT $1::text::uuid, true
WHERE semel_once('campaign', $1::text, 86400000000)
