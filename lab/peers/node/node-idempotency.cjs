// @node-idempotency/core over Redis, in an express app. Its package for express could not be installed
// from the registry, so the two calls are made here, as the documentation of the core shows.
//
// Settings: the key is required (enforceIdempotency); the caller is part of the prefix of the key
// in Redis (cacheKeyPrefix, an option of each request). Comparing the body is always on. There is
// no lease: the same TTL (a day) is for a request under way and for a finished one.

'use strict';

const express = require('express');
const { createHash } = require('node:crypto');
const { Idempotency, IdempotencyErrorCodes } = require('@node-idempotency/core');
const { RedisStorageAdapter } = require('@node-idempotency/storage-adapter-redis');
const { work } = require('./work.cjs');

const STATUS = {
  [IdempotencyErrorCodes.IDEMPOTENCY_KEY_MISSING]: 400,
  [IdempotencyErrorCodes.IDEMPOTENCY_KEY_LEN_EXEEDED]: 400,
  [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
  [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
};

async function main() {
  const storage = new RedisStorageAdapter({ url: process.env.STORE });
  await storage.connect();
  const idempotency = new Idempotency(storage, { enforceIdempotency: true });

  const app = express();
  app.use(express.json());
  app.post('/work', async (request, response) => {
    const caller = createHash('sha256').update(request.get('authorization') ?? '').digest('hex');
    const description = {
      method: request.method,
      headers: request.headers,
      body: request.body,
      path: request.path,
      options: { cacheKeyPrefix: `work:${caller}` },
    };
    try {
      const seen = await idempotency.onRequest(description);
      if (seen) {
        response.set('Idempotent-Replayed', 'true');
        return response.status(seen.additional.status).json(seen.body);
      }
    } catch (error) {
      return response.status(STATUS[error.code] ?? 500).json({ error: error.message });
    }
    const { status, body } = await work(request.get('x-work'), request.body);
    await idempotency.onResponse(description, { body, additional: { status } });
    return response.status(status).json(body);
  });
  app.use((error, request, response, next) => {
    if (response.headersSent) return next(error);
    response.status(500).json({ error: error.message });
  });
  app.listen(Number(process.env.PORT), '127.0.0.1');
}

main();
