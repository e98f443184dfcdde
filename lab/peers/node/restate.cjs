// A service for Restate, and a front that stands before its ingress.
//
// Settings: none. The effect is a step (`ctx.run`) and the wait is durable (`ctx.sleep`), as its
// documentation shows, so that both survive a crash of this process. What is final is said with
// a TerminalError, which is kept like an answer. There is no lease: the server sees the
// connection to this process break. The body is not compared. Success is 200, the ingress' own
// status.
//
// To the ingress a key is optional and belongs to the service, not to a caller. The front, on
// FRONT_PORT, requires one and puts the caller into it, as the other adapters do. The probes go
// through it. The load goes to the ingress itself, so that Restate is measured and not our front.

'use strict';

const http = require('node:http');
const { createHash } = require('node:crypto');

// The SDK is written for Node 22; this is all that Node 20 lacks of it.
Promise.withResolvers ??= function withResolvers() {
  let resolve;
  let reject;
  const promise = new Promise((...both) => {
    [resolve, reject] = both;
  });
  return { promise, resolve, reject };
};

const restate = require('@restatedev/restate-sdk');
const { answer, effect, hasEffect, wanted } = require('./work.cjs');

const app = restate.service({
  name: 'app',
  handlers: {
    work: async (ctx, request) => {
      const way = wanted(ctx.request().headers.get('x-work'));
      const reference = request?.merchant_reference ?? '';
      if (hasEffect(way.name)) await ctx.run('effect', () => effect(reference));
      if (way.name === 'slow') await ctx.sleep(way.number);
      const { status, body } = answer(way, reference, ctx.rand.uuidv4());
      if (status >= 400) {
        throw new restate.TerminalError(JSON.stringify(body), { errorCode: status });
      }
      return body;
    },
  },
});

const agent = new http.Agent({ keepAlive: true });
const ASKED_FOR_MS = 3000;
const PAUSE_MS = 250;

/** One call of the ingress: status, content type and body. */
function asked(headers, body) {
  return new Promise((resolve, reject) => {
    const request = http.request(process.env.INGRESS, { method: 'POST', agent, headers });
    request.on('error', reject);
    request.on('response', (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('error', reject);
      response.on('end', () => {
        const type = response.headers['content-type'] ?? 'application/json';
        resolve({ status: response.statusCode, type, body: Buffer.concat(parts) });
      });
    });
    request.end(body);
  });
}

/** Retries for a while, with the same key, when the server went away, as its documentation asks. */
async function answered(headers, body) {
  const end = Date.now() + ASKED_FOR_MS;
  for (;;) {
    try {
      return await asked(headers, body);
    } catch {
      // Whether the server took the request is unknown here.
      if (Date.now() >= end) return { status: 503, type: 'text/plain', body: '' };
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}

function front(request, response) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', async () => {
    const { authorization, 'idempotency-key': key, 'x-work': way } = request.headers;
    if (!key) return response.writeHead(400).end();
    const caller = createHash('sha256').update(authorization ?? '').digest('hex');
    const headers = { 'content-type': 'application/json', 'idempotency-key': `${caller}:${key}` };
    if (way) headers['x-work'] = way;
    const { status, type, body } = await answered(headers, Buffer.concat(parts));
    return response.writeHead(status, { 'content-type': type }).end(body);
  });
}

restate.serve({ services: [app], port: Number(process.env.PORT) });
http.createServer(front).listen(Number(process.env.FRONT_PORT), '127.0.0.1');
