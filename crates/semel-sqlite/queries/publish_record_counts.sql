-- Records when the latest scan ran. Its counts follow in the same transaction.
INSERT INTO semel_census_taken (one, began_at, ended_at, all_callers)
VALUES (1, ?1, ?2, ?3)
ON CONFLICT (one) DO UPDATE
SET began_at = excluded.began_at, ended_at = excluded.ended_at, all_callers = excluded.all_callers
WHERE ended_at <= excluded.ended_at -- guard: the latest stays
