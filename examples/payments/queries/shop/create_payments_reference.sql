-- The second guard: a reference is paid for once, under whatever key. A declined payment does not
-- count, so that another card can be tried.
CREATE UNIQUE INDEX IF NOT EXISTS payments_reference
ON payments (account, merchant_reference)
WHERE status <> 'declined'
