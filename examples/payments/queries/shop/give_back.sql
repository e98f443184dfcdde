-- A refund that the provider declined needs no room.
UPDATE payments
SET refunded = refunded - $1
WHERE id = $2
