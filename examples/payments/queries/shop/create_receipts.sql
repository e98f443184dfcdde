-- E-mails to be sent, one for each payment.
CREATE TABLE IF NOT EXISTS receipts (
    payment_id TEXT NOT NULL PRIMARY KEY,
    account    TEXT NOT NULL,
    text       TEXT NOT NULL
)
