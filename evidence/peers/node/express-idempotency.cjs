// express-idempotency over Redis, as its documentation shows it, with the adapter for Redis.
//
// Settings: none. Its lookup and its insert are two commands; there is no lease: the same TTL (a
// day) is for a request under way and for a finished one. Comparing the body is on by default.
// Keys are the process's own: it has no notion of a caller. A key is optional.
// One addition of ours: an error handler, since its documentation leaves the status to the app.

'use strict';

const express = require('express');
const { idempotency, getSharedIdempotencyService } = require('express-idempotency');
const RedisAdapter = require('express-idempotency-redis-adapter').default;
const { createClient } = require('@redis/client');
const { work } = require('./work.cjs');

async function main() {
  // A client of ours, which it documents, so that a lost connection does not end the process: an
  // error that nobody listens to does.
  const client = createClient({ url: process.env.STORE });
  client.on('error', () => {});
  await client.connect();

  const app = express();
  app.use(express.json());
  app.use(idempotency({ dataAdapter: new RedisAdapter({ connectionInstance: client }) }));
  app.post('/work', async (request, response) => {
    if (getSharedIdempotencyService().isHit(request)) return;
    const { status, body } = await work(request.get('x-work'), request.body);
    response.status(status).send(body);
  });
  app.use((error, request, response, next) => {
    if (response.headersSent) return next(error);
    const status = response.statusCode >= 400 ? response.statusCode : 500;
    response.status(status).json({ error: error.message });
  });
  app.listen(Number(process.env.PORT), '127.0.0.1');
}

main();
