-- The application's own tables, beside Semel's schema.
CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, quantity integer NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    item     text    NOT NULL REFERENCES stock,
    quantity integer NOT NULL
);
INSERT INTO stock VALUES ('chair', 10) ON CONFLICT DO NOTHING;
