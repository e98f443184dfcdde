-- What the application writes beside the record.
CREATE TABLE payments (id bigserial PRIMARY KEY, key text NOT NULL, amount bigint NOT NULL)
