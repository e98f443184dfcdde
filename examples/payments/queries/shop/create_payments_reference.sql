-- The second fence: one thing is paid for once, under whatever key it is asked for. A card that
-- was declined paid for nothing, and another may be tried.
CREATE UNIQUE INDEX IF NOT EXISTS payments_reference
ON payments (account, merchant_reference)
WHERE status <> 'declined'
