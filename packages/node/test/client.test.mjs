// What the scenarios cannot say: processes, the wrapper of `fetch`, and bounds.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Client, CredentialsMissing, FileJournal, ForeignOrigin, GaveUp, IETF, MemoryJournal, ResponseNotStored } from "semel/client";

import { Api } from "./api.mjs";

// What is not exported.
const inner = (name) => import(new URL(`../node_modules/semel/dist/client/${name}.js`, import.meta.url));
const { readRequest } = await inner("exchange");
const { fingerprint } = await inner("messages");
const { parseDate, retryAfterDelay } = await inner("profile");

const PAY = fileURLToPath(new URL("../examples/pay.mjs", import.meta.url));
const ORDER = '{"amount":1000}';
// The quota ends a call at its first failure, without a delay.
const ONE_ATTEMPT = { quota: { capacity: 0, cost: 5, refillPerSecond: 0 } };

let api;
let directory;
beforeEach(async () => {
  api = await Api.start();
  directory = await mkdtemp(join(tmpdir(), "semel-"));
});
const opened = [];
afterEach(async () => {
  api.close();
  for (const journal of opened.splice(0)) await journal.close();
  await rm(directory, { recursive: true });
});

function openFile(path) {
  const journal = new FileJournal(path);
  opened.push(journal);
  return journal;
}

function pay(client, headers = {}) {
  return client.call("invoice-1", `${api.url}/payments`, { method: "POST", headers, body: ORDER });
}

test("the key is in the file when the request arrives", async () => {
  const path = join(directory, "journal");
  const seen = [];
  api.onRequest = async (key) => seen.push([key.replaceAll('"', ""), await readFile(path, "utf8")]);
  await pay(new Client({ journal: openFile(path) }));
  assert.equal(seen.length, 1);
  assert.ok(seen[0][1].includes(seen[0][0]));
});

test("a journal file is for its owner and without credentials", async () => {
  const path = join(directory, "journal");
  api.fault = () => 503;
  const headers = { "x-tenant-key": "secret" };
  const client = new Client({ journal: openFile(path), headers, ...ONE_ATTEMPT });
  await assert.rejects(pay(client, { authorization: "Bearer secret", "x-tenant-key": "other-secret" }), GaveUp);
  const stored = await readFile(path, "utf8");
  assert.ok(!stored.includes("secret"));
  assert.ok(stored.includes(Buffer.from(ORDER).toString("base64")));
  assert.equal((await stat(path)).mode & 0o777, 0o600);
  assert.equal(api.requests[0].headers.authorization, "Bearer secret");
  assert.equal(api.requests[0].headers["x-tenant-key"], "secret");
});

test("what cannot be sent is not stored", async () => {
  const client = new Client({ journal: new MemoryJournal(), maxRequestBytes: 4 });
  const post = { method: "POST" };
  const refused = [
    ["", api.url, post],
    ["x".repeat(256), api.url, post],
    ["a\0b", api.url, post],
    ["a", api.url, { ...post, headers: { "Idempotency-Key": "mine" } }],
    ["a", api.url, { ...post, body: "12345" }],
    ["a", "ftp://127.0.0.1/", post],
    ["a", "/relative", post],
  ];
  for (const [intent, url, init] of refused) {
    await assert.rejects(client.call(intent, url, init), TypeError, JSON.stringify([intent, url]));
  }
  assert.deepEqual(await client.journal.list(), []);
  assert.equal(api.requests.length, 0);
});

test("resume sends nothing without the credentials of the call", async () => {
  const journal = new MemoryJournal();
  // Executed, and the response was lost. Then the process dies.
  api.fault = () => "drop";
  await assert.rejects(pay(new Client({ journal, ...ONE_ATTEMPT }), { authorization: "right" }), GaveUp);
  api.fault = () => undefined;
  const [refused] = await new Client({ journal }).resume();
  assert.ok(refused.error instanceof CredentialsMissing);
  assert.equal(api.requests.length, 1);
  const [finished] = await new Client({ journal, headers: { Authorization: "right" } }).resume();
  assert.equal(finished.response.status, 201);
  assert.equal(api.requests.at(-1).headers.authorization, "right");
  assert.equal(api.payments.size, 1);
  assert.deepEqual(await journal.list(), []);
});

test("a content type of the client is no credential", async () => {
  const journal = new MemoryJournal();
  const headers = { "content-type": "application/json" };
  api.fault = () => 503;
  const client = new Client({ journal, headers, ...ONE_ATTEMPT });
  await assert.rejects(pay(client, headers), GaveUp);
  await assert.rejects(pay(client, headers), GaveUp);
  api.fault = () => undefined;
  assert.equal((await pay(client, headers)).status, 201);
});

test("a key in the stored headers is replaced", async () => {
  const journal = new MemoryJournal();
  const headers = [["idempotency-key", '"theirs"']];
  const request = { method: "POST", url: api.url, headers, body: new Uint8Array() };
  const { key } = await journal.intend("a", request, 60_000, Date.now());
  await new Client({ journal }).finish("a");
  assert.deepEqual(api.requests.map((sent) => sent.key), [`"${key}"`]);
});

test("credentials go only to the origins of their client", async () => {
  const journal = new MemoryJournal();
  const request = (host) => ({ method: "POST", url: `https://${host}/`, headers: [], body: new Uint8Array() });
  for (const host of ["a.test", "b.test"]) await journal.intend(host, request(host), 60_000, Date.now());
  const hosts = [];
  const send = async ({ url }) => {
    hosts.push(new URL(url).host);
    return new Response("", { status: 201 });
  };
  const headers = { authorization: "Bearer a" };
  for (const { error } of await new Client({ journal, headers, fetch: send }).resume()) {
    assert.ok(error instanceof ForeignOrigin);
  }
  const ofA = new Client({ journal, headers, fetch: send, origins: ["https://a.test:443"] });
  await assert.rejects(ofA.finish("b.test"), ForeignOrigin);
  assert.deepEqual(hosts, []);
  assert.deepEqual((await ofA.resume()).map(({ intent }) => intent), ["a.test"]);
  assert.deepEqual(hosts, ["a.test"]);
  assert.deepEqual((await journal.list()).map(({ intent }) => intent), ["b.test"]);
});

test("a response over the bound is returned once", async () => {
  const client = new Client({ journal: new MemoryJournal(), maxResponseBytes: 4 });
  assert.deepEqual(await (await pay(client)).json(), { id: 1 });
  await assert.rejects(pay(client), ResponseNotStored);
  assert.equal(api.requests.length, 1);
});

test("a response that is too long ends an intent only if it is final", async () => {
  const chunk = new Uint8Array(1024 * 1024);
  const statuses = [503, 201];
  // Without an end.
  const long = () => new ReadableStream({ pull: (controller) => controller.enqueue(chunk) });
  const send = async () => new Response(long(), { status: statuses.shift() });
  const client = new Client({ journal: new MemoryJournal(), fetch: send, sleep: async () => {} });
  await assert.rejects(pay(client), ResponseNotStored);
  assert.deepEqual(statuses, []);
});

test("resume goes on after an intent that cannot be sent", async () => {
  const journal = new MemoryJournal();
  const request = (headers) => ({ method: "POST", url: api.url, headers, body: new Uint8Array() });
  await journal.intend("bad", request([["x-note", "a\nb"]]), 60_000, Date.now());
  await journal.intend("good", request([]), 60_000, Date.now());
  const [bad, good] = await new Client({ journal }).resume();
  assert.ok(bad.error instanceof TypeError);
  assert.equal(good.response.status, 201);
});

test("resume finishes several intents at a time, and reports them in order", async () => {
  const journal = new MemoryJournal();
  const names = Array.from({ length: 10 }, (_, nth) => `invoice-${nth}`);
  const request = { method: "POST", url: api.url, headers: [], body: new Uint8Array() };
  for (const name of names) await journal.intend(name, request, 60_000, Date.now());
  const waiting = [];
  const send = () => new Promise((done) => waiting.push(() => done(new Response("", { status: 201 }))));
  const resuming = new Client({ journal, fetch: send }).resume();
  await pause(50);
  assert.equal(waiting.length, 8);
  while (waiting.length > 0) {
    waiting.shift()();
    await pause(1);
  }
  assert.deepEqual((await resuming).map(({ intent }) => intent), names);
});

test("requests have the fingerprints of the file", async () => {
  const scenarios = process.env.SEMEL_SCENARIOS ?? fileURLToPath(new URL("../../scenarios/client.json", import.meta.url));
  const file = join(dirname(scenarios), "fingerprints.json");
  const { fingerprints } = JSON.parse(await readFile(file, "utf8"));
  assert.ok(fingerprints.length > 20);
  for (const vector of fingerprints) {
    const { name, method, url, stored_url: stored, content_type: type } = vector;
    const body = Buffer.from(vector.body ?? vector.body_base64, vector.body === undefined ? "base64" : "utf8");
    const headers = type === undefined ? [] : [["content-type", type]];
    const read = await readRequest(url, { method });
    assert.equal(read.url, stored, name);
    assert.equal(fingerprint({ ...read, headers, body }), vector.fingerprint, name);
  }
});

test("a date is read in each form", () => {
  for (const date of [
    "Sun, 06 Nov 1994 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994",
  ]) {
    assert.equal(parseDate(date), 784_111_777_000, date);
  }
  for (const text of ["7", "", "06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 CET"]) {
    assert.equal(parseDate(text), undefined, text);
  }
});

test("the first of repeated Retry-After headers counts", () => {
  const response = { kind: "response", status: 503, headers: [["retry-after", "7, 7"]], body: new Uint8Array() };
  assert.equal(retryAfterDelay(IETF.retryAfter, response, 0), 7000);
});

test("the first of repeated headers about a key counts", async () => {
  const date = (seconds) => new Date(seconds * 1000).toUTCString();
  let nowMs = 1_800_000_000_000;
  const expires = date(nowMs / 1000 + 2);
  const headers = { date: date(nowMs / 1000), "idempotency-key-expires": `${expires}, ${expires}` };
  const send = async () => new Response("", { status: 503, headers });
  const sleep = async (ms) => (nowMs += ms);
  const client = new Client({ journal: new MemoryJournal(), fetch: send, clock: () => nowMs, random: () => 1, sleep });
  await assert.rejects(pay(client), { reason: "deadline" });
  assert.equal(nowMs, 1_800_000_001_500);
  const replayed = async () => new Response("", { status: 500, headers: { "idempotent-replayed": "true, true" } });
  const again = new Client({ journal: new MemoryJournal(), fetch: replayed, sleep });
  assert.equal((await pay(again)).status, 500);
});

test("a location that cannot be requested is not", async () => {
  const sent = [];
  const headers = { "content-type": "application/json", location: "http://user@api.test/x" };
  const send = async ({ method, url }) => {
    sent.push(`${method} ${url}`);
    if (sent.length > 1) return new Response("", { status: 201 });
    return new Response('{"status":"in_progress","operation_id":"op-1"}', { status: 202, headers });
  };
  const client = new Client({ journal: new MemoryJournal(), fetch: send, sleep: async () => {} });
  await client.call("invoice-1", "http://api.test/", { method: "POST" });
  assert.deepEqual(sent, ["POST http://api.test/", "POST http://api.test/"]);
});

test("a status that no response can have is not stored", async () => {
  const answers = [{ status: 999, headers: new Headers(), body: null }, new Response("", { status: 201 })];
  const client = new Client({ journal: new MemoryJournal(), fetch: async () => answers.shift(), sleep: async () => {} });
  assert.equal((await pay(client)).status, 201);
});

test("concurrent calls share one request", async () => {
  const client = new Client({ journal: new MemoryJournal() });
  const responses = await Promise.all(Array.from({ length: 8 }, () => pay(client)));
  for (const response of responses) assert.deepEqual(await response.json(), { id: 1 });
  assert.equal(api.requests.length, 1);
});

test("an aborted call sends nothing more, and leaves its intent open", async () => {
  const journal = new MemoryJournal();
  // The first delay takes half a second.
  const client = new Client({ journal, random: () => 1 });
  const call = (signal) => client.call("invoice-1", api.url, { method: "POST", body: ORDER, signal });
  await assert.rejects(call(AbortSignal.abort()), { name: "AbortError" });
  assert.deepEqual(await journal.list(), []);
  api.fault = () => 503;
  const controller = new AbortController();
  api.onRequest = async () => void setTimeout(() => controller.abort(), 50);
  await assert.rejects(call(controller.signal), { name: "AbortError" });
  assert.equal((await journal.list()).length, 1);
  await pause(700);
  assert.equal(api.requests.length, 1);
  api.fault = () => undefined;
  assert.equal((await call()).status, 201);
  assert.equal(api.keys.size, 1);
});

test("an aborted attempt leaves its intent open, and other callers their call", async () => {
  const journal = new MemoryJournal();
  const signals = [];
  let answer;
  const send = ({ signal }) =>
    new Promise((done, failed) => {
      signals.push(signal);
      answer = () => done(new Response("", { status: 201 }));
      signal.addEventListener("abort", () => failed(signal.reason));
    });
  const client = new Client({ journal, fetch: send });
  const aborts = [new AbortController(), new AbortController(), new AbortController()];
  const [first, second, third] = aborts.map(({ signal }) =>
    client.call("invoice-1", api.url, { method: "POST", body: ORDER, signal }),
  );
  // All have read their bodies when the first has sent its request, and more.
  while (signals.length < 1) await pause(10);
  await pause(10);
  aborts[0].abort();
  await assert.rejects(first, { name: "AbortError" });
  assert.equal(signals[0].aborted, false);
  aborts[2].abort();
  await assert.rejects(third, { name: "AbortError" });
  aborts[1].abort();
  await assert.rejects(second, { name: "AbortError" });
  assert.equal(signals[0].aborted, true);
  assert.equal((await journal.list()).length, 1);
  const again = client.call("invoice-1", api.url, { method: "POST", body: ORDER });
  while (signals.length < 2) await pause(10);
  answer();
  assert.equal((await again).status, 201);
  assert.equal(signals.length, 2);
});

test("fetch takes the intent from its options", async () => {
  const client = new Client({ journal: new MemoryJournal(), sleep: async () => undefined });
  api.fault = (number) => (number === 1 ? 503 : undefined);
  for (let nth = 0; nth < 2; nth += 1) {
    const response = await client.fetch(api.url, { intent: "invoice-1", method: "POST", body: ORDER });
    assert.deepEqual(await response.json(), { id: 1 });
  }
  assert.equal(api.requests.length, 2);
  assert.equal(api.keys.size, 1);
});

test("fetch passes other requests on", async () => {
  const client = new Client({ journal: new MemoryJournal(), sleep: async () => undefined });
  api.fault = (number) => ({ 1: 503, 2: "drop", 3: 503, 5: 503 })[number];
  const post = { method: "POST", body: ORDER };
  assert.equal((await client.fetch(api.url, post)).status, 503);
  await assert.rejects(client.fetch(api.url, post), TypeError);
  assert.equal((await client.fetch(api.url)).status, 201);
  assert.equal(api.requests.length, 4);
  // With a key of its own it is retried in this process.
  const keyed = { ...post, headers: { "idempotency-key": '"mine"' } };
  assert.equal((await client.fetch(api.url, keyed)).status, 201);
  assert.deepEqual(api.requests.slice(4).map(({ key }) => key), ['"mine"', '"mine"']);
});

test("a quota that is used up without an intent returns what came last", async () => {
  const client = new Client({ journal: new MemoryJournal(), ...ONE_ATTEMPT });
  api.fault = () => 503;
  assert.equal((await client.fetch(api.url)).status, 503);
});

/** A process with its output; killed after a while if a time is given. */
async function startPay(intent, journal, killAfterMs) {
  const child = spawn(process.execPath, [PAY, `${api.url}/payments`, intent, journal, ORDER]);
  let output = "";
  child.stdout.on("data", (chunk) => (output += chunk));
  child.stderr.on("data", (chunk) => (output += chunk));
  const ended = new Promise((done) => child.once("close", (code, signal) => done({ code, signal })));
  if (killAfterMs !== undefined) {
    await pause(killAfterMs);
    child.kill("SIGKILL");
  }
  return { ...(await ended), output };
}

test("processes that call one intent at once send one key", async () => {
  for (let nth = 1; nth <= 3; nth += 1) {
    const journal = join(directory, `journal-${nth}`);
    const runs = Array.from({ length: 4 }, () => startPay(`invoice-${nth}`, journal));
    for (const run of await Promise.all(runs)) {
      assert.deepEqual(run, { code: 0, signal: null, output: `{"id":${nth}}\n` });
    }
  }
  assert.equal(api.payments.size, 3);
  assert.equal(api.keys.size, 3);
});

test("a killed process ends with its response when it runs again", async (context) => {
  api.fault = (number) => (number % 3 === 0 ? "drop" : undefined);
  const intents = Number(process.env.SEMEL_KILLED_INTENTS ?? 6);
  let kills = 0;
  for (let nth = 1; nth <= intents; nth += 1) {
    let run;
    // The moment of the kill is what is tested: from the start of the process to its end. On a busy
    // machine the process takes longer, so each run has more time than the one before.
    let longest = 120;
    do {
      run = await startPay(`invoice-${nth}`, join(directory, "journal"), 30 + Math.random() * longest);
      longest *= 1.5;
      if (run.signal === "SIGKILL") kills += 1;
      else assert.equal(run.code, 0, run.output);
    } while (run.code !== 0);
    assert.equal(run.output, `{"id":${nth}}\n`);
    assert.equal(api.payments.size, nth);
  }
  context.diagnostic(`${kills} kills`);
  assert.equal(api.keys.size, intents);
});

test("the lines of the README work", async () => {
  const text = await readFile(new URL("../README.md", import.meta.url), "utf8");
  const [, lines] = /```js\n(.*?)```/s.exec(text);
  const program = join(fileURLToPath(new URL(".", import.meta.url)), `readme-${process.pid}.mjs`);
  const journal = JSON.stringify(join(directory, "payments.journal"));
  await writeFile(
    program,
    lines.replace("https://api.example.com", api.url).replace('"payments.journal"', journal),
  );
  try {
    for (let nth = 0; nth < 2; nth += 1) {
      const child = spawn(process.execPath, [program]);
      let output = "";
      child.stdout.on("data", (chunk) => (output += chunk));
      child.stderr.on("data", (chunk) => (output += chunk));
      await new Promise((done) => child.once("close", done));
      assert.equal(output, "201 { id: 1 }\n");
    }
  } finally {
    await rm(program);
  }
  assert.equal(api.requests.length, 1);
  assert.deepEqual(await readdir(directory), ["payments.journal"]);
});
