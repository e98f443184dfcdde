-- Dead-letters an event that no broker accepts; later events of its aggregate continue.
WITH aside AS (
    UPDATE semel.outbox
    SET dead_at = coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
        reason = $3
    WHERE id = $2
      AND dead_at IS NULL -- guard: the first reason stays
    RETURNING aggregate
)
DELETE FROM semel.outbox_held
USING aside
WHERE outbox_held.aggregate = aside.aggregate -- guard: only its aggregate
