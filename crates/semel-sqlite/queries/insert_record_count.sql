-- Writes one count of a scan.
INSERT INTO semel_census (place, operation, status, count)
VALUES (?1, ?2, ?3, ?4)
