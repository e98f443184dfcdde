// Creates payment intents with the stripe SDK, and prints what the SDK returned or raised.
//
// Arguments: the directory that the SDK is installed in, and the address of the API. Reads one JSON
// object per line and prints one per line. A proxy records how often the SDK sends a request.

import { strict as assert } from 'node:assert';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const [directory, address] = process.argv.slice(2);
// Not an import: the SDK is not installed beside this file.
const Stripe = createRequire(join(directory, 'probe.mjs'))('stripe');

async function create(order) {
  const { hostname, port } = new URL(address);
  const client = new Stripe(order.api_key, {
    protocol: 'http',
    host: hostname,
    port,
    maxNetworkRetries: order.retries,
  });
  const params = { amount: order.amount, currency: 'eur' };
  const options = {};
  if (order.key !== null) options.idempotencyKey = order.key;
  if (order.account !== null) options.stripeAccount = order.account;
  try {
    const intent = await client.paymentIntents.create(params, options);
    const { statusCode: status, headers } = intent.lastResponse;
    return { id: intent.id, status, headers };
  } catch (error) {
    if (!(error instanceof Stripe.errors.StripeError)) throw error;
    const { code, statusCode: status, headers } = error;
    return { class: publicName(error), code, status, headers };
  }
}

// The name of the error class that an application catches.
function publicName(error) {
  assert.equal(Stripe.errors[error.type], error.constructor);
  return error.type;
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await create(JSON.parse(line))));
}
