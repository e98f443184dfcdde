-- The provider declined the refund: its amount is available again.
UPDATE payments
SET refunded = refunded - $1
WHERE id = $2
