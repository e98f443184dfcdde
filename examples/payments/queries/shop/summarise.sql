-- For tests, and for people who follow the README.
SELECT
    (SELECT count(*) FROM payments WHERE status = 'processing') AS processing,
    (SELECT count(*) FROM payments WHERE status = 'succeeded') AS succeeded,
    (SELECT count(*) FROM payments WHERE status = 'declined') AS declined,
    (SELECT count(*) FROM refunds WHERE status = 'processing') AS refunding,
    (SELECT count(*) FROM refunds WHERE status = 'succeeded') AS refunded,
    (SELECT count(*) FROM ledger) AS ledger_entries,
    (SELECT CAST(coalesce(sum(amount), 0) AS BIGINT) FROM ledger) AS ledger_total,
    (SELECT count(*) FROM receipts) AS receipts
