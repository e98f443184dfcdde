-- Deletes events that the broker confirmed, and ends the hold of their aggregates.
WITH sent AS (
    DELETE FROM semel.outbox
    WHERE id = ANY ($1::uuid[])
      AND dead_at IS NULL -- guard: dead-lettered events stay
    RETURNING aggregate
)
DELETE FROM semel.outbox_held
USING sent
WHERE outbox_held.aggregate = sent.aggregate -- guard: only their aggregates
