-- A change and the event that reports it, in the caller's transaction.
WITH written AS (
    INSERT INTO campaign_messages (id, is_effect)
    VALUES (gen_random_uuid(), false)
    RETURNING id
)
SELECT id::text, semel_publish(id, 'campaign.counted', 'counter/' || $1::bigint, ''::bytea)
FROM written
