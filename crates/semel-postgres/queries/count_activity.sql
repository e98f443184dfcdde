-- Adds one process's counts to those of all processes. Every process sends its rows ordered by
-- time and operation, so that two that add at once cannot deadlock. A sum that would overflow
-- stops at the largest number: it must not keep the others from being added.
INSERT INTO semel.activity AS kept (
    at, operation_hash, operation,
    created, replayed, in_progress, misuse, retried, unknown, expired, failed
)
SELECT
    at, sha256(convert_to(operation, 'UTF8')), operation,
    created, replayed, in_progress, misuse, retried, unknown, expired, failed
FROM unnest(
    $1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[]
) AS counted (
    at, operation, created, replayed, in_progress, misuse, retried, unknown, expired, failed
)
ON CONFLICT ON CONSTRAINT activity_pkey DO UPDATE
SET created = kept.created + least(excluded.created, 9223372036854775807 - kept.created),
    replayed = kept.replayed + least(excluded.replayed, 9223372036854775807 - kept.replayed),
    in_progress = kept.in_progress + least(excluded.in_progress, 9223372036854775807 - kept.in_progress),
    misuse = kept.misuse + least(excluded.misuse, 9223372036854775807 - kept.misuse),
    retried = kept.retried + least(excluded.retried, 9223372036854775807 - kept.retried),
    unknown = kept.unknown + least(excluded.unknown, 9223372036854775807 - kept.unknown),
    expired = kept.expired + least(excluded.expired, 9223372036854775807 - kept.expired),
    failed = kept.failed + least(excluded.failed, 9223372036854775807 - kept.failed)
