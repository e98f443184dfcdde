// A workflow of DBOS over PostgreSQL, behind a plain HTTP server. The workflow's id is made of the
// caller and the key, which is how its documentation does idempotency.
//
// Settings: a pool of 20 connections instead of 10, as the other adapters over PostgreSQL have. The
// effect is a step and the wait is durable (`DBOS.sleep`), so that both
// survive a crash of this process: it takes up what it left when it starts again. There is no
// lease: a workflow belongs to its process until that one recovers it. The input is not compared.

'use strict';

const http = require('node:http');
const { createHash } = require('node:crypto');
const { DBOS } = require('@dbos-inc/dbos-sdk');
const { answer, effect, hasEffect, wanted } = require('./work.cjs');

async function workflow(header, request) {
  const way = wanted(header);
  const reference = request?.merchant_reference ?? '';
  if (hasEffect(way.name)) await DBOS.runStep(() => effect(reference), { name: 'effect' });
  if (way.name === 'slow') await DBOS.sleep(way.number);
  return answer(way, reference);
}
const work = DBOS.registerWorkflow(workflow, { name: 'work' });

function text(request) {
  return new Promise((resolve, reject) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => resolve(Buffer.concat(parts).toString()));
    request.on('error', reject);
  });
}

async function serve(request, response) {
  const body = JSON.parse(await text(request));
  const key = request.headers['idempotency-key'];
  if (!key) return reply(response, 400, { error: 'a key is required' });
  const caller = createHash('sha256').update(request.headers.authorization ?? '').digest('hex');
  const options = { workflowID: `${caller}:${key}` };
  const handle = await DBOS.startWorkflow(work, options)(request.headers['x-work'] ?? '', body);
  const result = await handle.getResult();
  return reply(response, result.status, result.body);
}

function reply(response, status, body) {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(body));
}

async function main() {
  DBOS.setConfig({
    name: 'work',
    systemDatabaseUrl: process.env.STORE,
    systemDatabasePoolSize: 20,
    logLevel: 'error',
  });
  await DBOS.launch();
  const server = http.createServer((request, response) => {
    serve(request, response).catch((error) => reply(response, 500, { error: error.message }));
  });
  server.listen(Number(process.env.PORT), '127.0.0.1');
}

main();
