-- Removes everything that could name a person, evidence too, and keeps the record. The commit
-- notifies every process that caches responses.
WITH clock AS MATERIALIZED (
    SELECT coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
),
erased AS (
    UPDATE semel.operations
    SET response_headers = '', response_body = NULL, body_expires_at = NULL,
        recovery_point = NULL, recovery_data = NULL, updated_at = clock.now
    FROM clock
    WHERE id = $2
      AND status = 'completed' -- guard: an unfinished record still needs its data
    RETURNING id, attempt, error_code, clock.now
),
redacted AS (
    UPDATE semel.history
    SET evidence = NULL
    FROM erased
    WHERE history.operation_id = erased.id -- guard: one operation's evidence
      AND history.evidence IS NOT NULL
),
counted AS (
    UPDATE semel.epoch
    SET erasures = erasures + 1
    WHERE EXISTS (SELECT FROM erased)
    RETURNING erasures
)
SELECT
    erasures, pg_notify('semel', 'epoch ' || erasures)::text,
    semel.tell(id, now, attempt, 'erased', $3, error_code, $4, NULL)::text
FROM counted
CROSS JOIN erased
