-- Takes from the stock what is there, and makes the order; no row where there is too little.
WITH taken AS (
    UPDATE stock SET quantity = quantity - $2 WHERE item = $1 AND quantity >= $2 RETURNING item
)
INSERT INTO orders (item, quantity)
SELECT item, $2 FROM taken
RETURNING id
