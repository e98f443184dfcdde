-- How the outbox stands. Counting stops at a bound, so that a long backlog costs no more.
SELECT
    (
        SELECT count(*)
        FROM (
            SELECT seq
            FROM semel_outbox
            WHERE dead_at IS NULL -- guard: only what waits to be published
            LIMIT ?1
        )
    ),
    (
        SELECT written_at
        FROM semel_outbox
        WHERE dead_at IS NULL -- guard: only what waits to be published
        ORDER BY seq
        LIMIT 1
    ),
    (
        SELECT count(*)
        FROM (
            SELECT seq
            FROM semel_outbox
            WHERE dead_at IS NOT NULL -- guard: only what waits for a person
            LIMIT ?1
        )
    )
