-- What publishers wrote, and what came of it. No constraint keeps a second effect out: that is the
-- inbox's part.
CREATE TABLE IF NOT EXISTS campaign_messages (
    id        uuid    NOT NULL,
    is_effect boolean NOT NULL
)
