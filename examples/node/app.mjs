// Payments in Node behind the gateway: the row and the stored answer commit together.
//
// The gateway sends the operation and the attempt as headers. `semel_complete` writes the answer into
// Semel's record inside our transaction: after COMMIT both are there, before it neither is. If this
// process dies between COMMIT and the answer, the gateway answers from the record.

import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
// An idle connection that breaks is replaced by the next request.
pool.on("error", (error) => console.error(error.message));

// Fails once, for a demonstration: "before_commit" or "after_commit".
let failure = process.env.FAIL_ONCE;

// It failed before COMMIT was sent, so nothing happened.
class NotExecuted extends Error {}

// Commits the payment and its answer in one transaction.
async function pay(operationId, attempt, order) {
  const database = await pool.connect().catch((cause) => {
    throw new NotExecuted("no connection", { cause });
  });
  let broken = true;
  try {
    const answer = await prepare(database, operationId, attempt, order).catch((cause) => {
      throw new NotExecuted("rolled back", { cause });
    });
    // If this fails, only the record shows whether it is committed.
    await database.query("COMMIT");
    broken = false;
    if (failure === "after_commit") process.exit(1);
    return answer;
  } finally {
    // Closing a connection rolls its open transaction back.
    database.release(broken);
  }
}

// Everything but the COMMIT.
async function prepare(database, operationId, attempt, text) {
  const order = JSON.parse(text);
  await database.query("BEGIN");
  const inserted = await database.query(
    "INSERT INTO payments (amount, currency) VALUES ($1, $2) RETURNING id",
    [order.amount, order.currency],
  );
  const id = Number(inserted.rows[0].id);
  const headers = { "content-type": "application/json", location: `/payments/${id}` };
  const body = Buffer.from(JSON.stringify({ id, ...order }));
  // Fails where this attempt no longer owns the operation: then nothing may commit.
  await database.query("SELECT semel_complete($1, $2, $3, $4, $5)", [
    operationId,
    attempt,
    201,
    JSON.stringify(headers),
    body,
  ]);
  if (failure === "before_commit") {
    failure = undefined;
    throw new Error("FAIL_ONCE=before_commit");
  }
  return [201, headers, body];
}

function answer(response, status, headers, body = Buffer.alloc(0)) {
  response.writeHead(status, { ...headers, "content-length": body.length }).end(body);
}

const server = createServer(async (request, response) => {
  const { "semel-operation-id": operationId, "semel-attempt": attempt } = request.headers;
  const known = request.method === "POST" && request.url === "/payments";
  if (!known || operationId === undefined || attempt === undefined) {
    return answer(response, 404, {});
  }
  try {
    const order = await text(request);
    answer(response, ...(await pay(operationId, Number(attempt), order)));
  } catch (error) {
    console.error(error);
    // Where nothing happened, the gateway may let the same key execute again.
    if (error instanceof NotExecuted) {
      answer(response, 503, { "semel-outcome": "not-executed" });
    } else {
      answer(response, 504, { "semel-outcome": "unknown" });
    }
  }
});

await pool.query(
  `CREATE TABLE IF NOT EXISTS payments (
     id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
     amount bigint NOT NULL, currency text NOT NULL)`,
);
server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  console.log(`listening http://127.0.0.1:${server.address().port}`);
});
