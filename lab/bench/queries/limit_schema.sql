-- The least table that does the job: a lock, a fence, a lease, an answer and its end. One index,
-- nothing to list, sweep or purge by.
CREATE TABLE operations (
    key_hash     bytea    PRIMARY KEY,
    id           bytea    NOT NULL,
    fingerprint  bytea    NOT NULL,
    status       smallint NOT NULL,
    attempt      integer  NOT NULL,
    locked_until bigint   NOT NULL,
    response     bytea,
    expires_at   bigint
)
