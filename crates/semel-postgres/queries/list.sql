-- Records, newest first, before a cursor. The first page starts after the largest possible id, so
-- that every page is one index seek. A filter that is NULL admits all.
--
-- One page examines at most $8 rows, whether they match or not. If the page is not full then and
-- older rows exist, a last row that has only an id says where the next page starts. It is read
-- from the index alone.
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
  AND EXISTS (SELECT FROM semel.operations AS beyond WHERE beyond.id < floor.id) -- guard: more records exist
