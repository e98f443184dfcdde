-- Deletes the oldest misuse beyond the number that is kept: invented tenants must not fill the
-- file.
DELETE FROM semel_misuse
WHERE (tenant, operation) IN (
    SELECT tenant, operation
    FROM semel_misuse
    ORDER BY last_at DESC, tenant DESC, operation DESC
    LIMIT -1 OFFSET ?1
)
