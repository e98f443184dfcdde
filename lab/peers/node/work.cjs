// What every adapter serves: one effect at the ledger, and an answer of about 1 KiB. The header
// X-Work drives how it goes; see ../README.md for the ways.

'use strict';

const http = require('node:http');
const { randomUUID } = require('node:crypto');

const ANSWER_BYTES = 1024;

const effects = new URL(`${process.env.LEDGER_URL}/effects`);
const agent = new http.Agent({ keepAlive: true });

/** Adds one effect to the ledger. */
function effect(reference) {
  return new Promise((resolve, reject) => {
    const request = http.request(effects, { method: 'POST', agent }, (response) => {
      response.resume();
      response.on('end', () =>
        response.statusCode < 300 ? resolve() : reject(new Error(`ledger: ${response.statusCode}`)),
      );
    });
    request.on('error', reject);
    request.end(JSON.stringify({ reference }));
  });
}

/** How a request wants to go: a name, and a number for those that take one. */
function wanted(header) {
  const [name, number] = (header ?? '').split(':');
  return { name, number: Number(number ?? 0) };
}

/** Whether this way has an effect. */
function hasEffect(name) {
  return name !== 'quick' && name !== 'declined';
}

/** Status and body. The id is new with every execution, so that an answer shows whose it is. */
function answer({ name, number }, reference, id = randomUUID()) {
  if (name === 'timeout') {
    return { status: 504, body: { error: 'the provider did not answer in time' } };
  }
  if (name === 'declined') {
    return { status: 402, body: { id, status: 'declined' } };
  }
  const body = { id, status: 'succeeded', merchant_reference: reference, note: '' };
  const bytes = name === 'large' ? number : ANSWER_BYTES;
  body.note = 'x'.repeat(Math.max(0, bytes - JSON.stringify(body).length));
  return { status: 201, body };
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** All of it, for adapters that need not take it apart. */
async function work(header, body) {
  const way = wanted(header);
  const reference = body?.merchant_reference ?? '';
  if (hasEffect(way.name)) await effect(reference);
  if (way.name === 'slow') await pause(way.number);
  return answer(way, reference);
}

module.exports = { answer, effect, hasEffect, wanted, work };
