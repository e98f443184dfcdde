// express-idempotency over Redis, as its documentation shows it, with the adapter for Redis.
//
// Settings: every answer is kept (responseValidator), as with the others, instead of successes
// alone. Its lookup and its insert are two commands; there is no lease: the same TTL (a day) is for
// a request under way and for a finished one. Comparing the body is on by default. It sets no limit
// to the size of an answer.
//
// Three additions of ours, since it has no option for them: a key is required; the caller goes into
// the key, by a header of our own that is named to it (idempotencyKeyHeader); and an error handler,
// since its documentation leaves the status to the app.

'use strict';

const express = require('express');
const { createHash } = require('node:crypto');
const { idempotency, getSharedIdempotencyService } = require('express-idempotency');
const RedisAdapter = require('express-idempotency-redis-adapter').default;
const { createClient } = require('@redis/client');
const { work } = require('./work.cjs');

const CALLER_AND_KEY = 'x-caller-and-key';

function callerIntoKey(request, response, next) {
  const key = request.get('idempotency-key');
  if (!key) return response.status(400).json({ error: 'a key is required' });
  const caller = createHash('sha256').update(request.get('authorization') ?? '').digest('hex');
  request.headers[CALLER_AND_KEY] = `${caller}:${key}`;
  return next();
}

async function main() {
  // A client of ours, which it documents, so that a lost connection does not end the process: an
  // unhandled error does.
  const client = createClient({ url: process.env.STORE });
  client.on('error', () => {});
  await client.connect();

  const app = express();
  app.use(express.json());
  app.use(callerIntoKey);
  app.use(
    idempotency({
      idempotencyKeyHeader: CALLER_AND_KEY,
      dataAdapter: new RedisAdapter({ connectionInstance: client }),
      responseValidator: { isValidForPersistence: () => true },
    }),
  );
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
