-- Operations, newest first, from a cursor on; the first page begins after all ids there can
-- be, so that every page is found by a seek. The filters that are not set admit all.
--
-- Only so many are looked at, whether they fit or not. Where a page is not full with them, a last row
-- says how far it has come, if there are others beyond: it has only an id. It is looked for in
-- the index alone, and not where the page is full.
WITH page AS MATERIALIZED (
    SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
        created_at, updated_at
    FROM (
        SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
            created_at, updated_at
        FROM semel.operations
        WHERE id < $1 -- guard: after the page before
        ORDER BY id DESC
        LIMIT $8
    ) AS looked_at
    WHERE ($2::text IS NULL OR status = $2) -- guard: filter
      AND ($3::text IS NULL OR tenant = $3) -- guard: filter
      AND ($4::text IS NULL OR operation = $4) -- guard: filter
      AND ($5::text IS NULL OR key = $5) -- guard: filter
      AND ($6::boolean IS NULL OR (dead_lettered_at IS NOT NULL) = $6) -- guard: filter
    ORDER BY id DESC
    LIMIT $7
),
floor AS MATERIALIZED (
    SELECT id
    FROM semel.operations
    WHERE id < $1 -- guard: after the page before
    ORDER BY id DESC
    OFFSET $8::bigint - 1
    LIMIT 1
)
SELECT id, scope, tenant, operation, key, status, attempt, dead_lettered_at, error_code,
    created_at, updated_at
FROM page
UNION ALL
SELECT id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM floor
WHERE (SELECT count(*) FROM page) < $7
  AND EXISTS (SELECT FROM semel.operations AS beyond WHERE beyond.id < floor.id) -- guard: others beyond
