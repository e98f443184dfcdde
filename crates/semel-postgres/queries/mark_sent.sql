-- The broker has these: they go, and whoever came after them need not wait any longer.
WITH sent AS (
    DELETE FROM semel.outbox
    WHERE id = ANY ($1::uuid[])
      AND dead_at IS NULL -- guard: what waits for a person stays until the person has decided
    RETURNING aggregate
)
DELETE FROM semel.outbox_held
USING sent
WHERE outbox_held.aggregate = sent.aggregate -- guard: only their aggregates
