-- Adds the misuse that one process saw, as `Misuse::add` does. Every process sends its rows
-- ordered by tenant and operation, so that two that add at once cannot deadlock.
INSERT INTO semel.misuse AS kept (
    tenant, operation_hash, operation, count, first_at, last_at, last_id
)
SELECT
    tenant, sha256(convert_to(operation, 'UTF8')), operation, count, first_at, last_at, last_id
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[])
    AS seen (tenant, operation, count, first_at, last_at, last_id)
ON CONFLICT ON CONSTRAINT misuse_pkey DO UPDATE
SET count = kept.count + least(excluded.count, 9223372036854775807 - kept.count),
    first_at = least(kept.first_at, excluded.first_at),
    last_at = greatest(kept.last_at, excluded.last_at),
    last_id = CASE WHEN excluded.last_at >= kept.last_at THEN excluded.last_id ELSE kept.last_id END
