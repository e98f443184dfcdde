-- The messages whose transactions were committed, and the effects of each.
SELECT id::text, count(*) FILTER (WHERE NOT is_effect), count(*) FILTER (WHERE is_effect)
FROM campaign_messages
GROUP BY id
