-- Counts what the outbox holds. Counting stops at a bound, so that a long backlog costs no more.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT seq
            FROM semel_outbox
            WHERE dead_at IS NULL -- guard: not dead-lettered
            LIMIT ?1
        )
    ),
    (
        SELECT written_at
        FROM semel_outbox
        WHERE dead_at IS NULL -- guard: not dead-lettered
        ORDER BY seq
        LIMIT 1
    ),
    (
        SELECT count(*)
        FROM (
            SELECT seq
            FROM semel_outbox
            WHERE dead_at IS NOT NULL -- guard: only dead-lettered events
            LIMIT ?1
        )
    )
