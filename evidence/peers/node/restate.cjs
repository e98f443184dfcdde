// A service for Restate. Its ingress takes `Idempotency-Key` itself, so there is no server of ours
// in between: the harness calls the ingress, POST /app/work.
//
// Settings: none. The effect is a step (`ctx.run`) and the wait is durable (`ctx.sleep`), as its
// documentation shows, so that both survive a crash of this process. What is final is said with
// a TerminalError, which is kept like an answer. There is no lease: the server sees the
// connection to this process break. A key is optional, and belongs to the service, not to a
// caller; the body is not compared. Success is 200, the ingress' own status.

'use strict';

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

restate.serve({ services: [app], port: Number(process.env.PORT) });
