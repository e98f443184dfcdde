-- Replaces the record counts before, in one row.
INSERT INTO semel.census AS latest (
    began_at, ended_at, all_callers, operations, statuses, counts
)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT ON CONSTRAINT census_pkey DO UPDATE
SET began_at = excluded.began_at, ended_at = excluded.ended_at,
    all_callers = excluded.all_callers, operations = excluded.operations,
    statuses = excluded.statuses, counts = excluded.counts
WHERE latest.ended_at <= excluded.ended_at -- guard: the latest stays
