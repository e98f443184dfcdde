// The journals: the same rules for all, then what only a file can go through.

import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { appendFile, copyFile, mkdtemp, readFile, readdir, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { fileURLToPath } from "node:url";

import { FileJournal, IntentConflict, JournalError, JournalFull, MemoryJournal } from "semel/client";
import { install, intend, PgJournal } from "semel/client/pg";

const DAY_MS = 24 * 3600 * 1000;
const REQUEST = {
  method: "POST",
  url: "http://127.0.0.1/payments",
  headers: [["x-a", "b#c"]],
  body: new Uint8Array([0, 35, 10]),
};
const STORED = { status: 201, headers: [["content-type", "text/plain"]], body: new Uint8Array([255, 10, 1]) };

let directory;
let path;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "semel-"));
  path = join(directory, "journal");
});
const opened = [];
afterEach(async () => {
  for (const journal of opened.splice(0)) await journal.close();
  await rm(directory, { recursive: true });
});

function openFile(options) {
  const journal = new FileJournal(path, options);
  opened.push(journal);
  return journal;
}

const JOURNALS = {
  file: openFile,
  memory: (options) => new MemoryJournal(options),
};

// The database of the package's tests: DATABASE_URL.
let pool;
if (process.env.DATABASE_URL) {
  const { default: pg } = await import("pg");
  pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
  await install(pool);
  beforeEach(() => pool.query("TRUNCATE semel.intents"));
  test.after(() => pool.end());
  JOURNALS.pg = (options) => new PgJournal(pool, options);
}

for (const [name, start] of Object.entries(JOURNALS)) {
  test(`the first entry and the first response stay (${name})`, async () => {
    const journal = start();
    const first = await journal.intend("a", REQUEST, DAY_MS, 1000);
    assert.deepEqual(first.request, REQUEST);
    assert.equal(first.expiresMs, 1000 + DAY_MS);
    assert.equal(first.isSent, false);
    assert.deepEqual(await journal.intend("a", REQUEST, DAY_MS, 2000), { ...first, isSent: true });
    const other = { ...REQUEST, body: new Uint8Array([1]) };
    await assert.rejects(journal.intend("a", other, DAY_MS, 2000), IntentConflict);
    // The response to another key, of an intent that was forgotten meanwhile, is not stored.
    await journal.finish("a", "another key", STORED, 3000);
    assert.deepEqual((await journal.list()).map(({ key }) => key), [first.key]);
    assert.deepEqual(await journal.finish("a", first.key, STORED, 3000), STORED);
    const late = { status: 500, headers: [], body: undefined };
    assert.deepEqual(await journal.finish("a", first.key, late, 4000), STORED);
    assert.deepEqual((await journal.find("a")).response, STORED);
    assert.deepEqual(await journal.list(), []);
  });

  test(`a response may end only an intent that no other process found (${name})`, async () => {
    const journal = start();
    for (const find of [() => journal.intend("a", REQUEST, DAY_MS, 0), (key) => journal.start("a", key)]) {
      const { key } = await journal.intend("a", REQUEST, DAY_MS, 0);
      await find(key);
      assert.equal(await journal.finish("a", key, STORED, 0, true), undefined);
      assert.equal((await journal.list()).length, 1);
      assert.deepEqual(await journal.finish("a", key, STORED, 0), STORED);
      await journal.forget("a");
    }
    const alone = await journal.intend("b", REQUEST, DAY_MS, 0);
    assert.deepEqual(await journal.finish("b", alone.key, STORED, 0, true), STORED);
  });

  test(`the form of a key stays (${name})`, async () => {
    const journal = start();
    const { key } = await journal.intend("a", REQUEST, DAY_MS, 0, "k: {key}");
    assert.equal((await journal.intend("a", REQUEST, DAY_MS, 0, 'k: "{key}"')).keyForm, "k: {key}");
    assert.equal((await journal.start("a", key, 'k: "{key}"')).keyForm, "k: {key}");
  });

  test(`a note shortens the lifetime of the key (${name})`, async () => {
    const journal = start();
    const { key } = await journal.intend("a", REQUEST, DAY_MS, 0);
    await journal.note("a", key, { expiresMs: 5000, isUnknown: true, operationId: "op-1" });
    await journal.note("a", key, { expiresMs: 9000, isUnknown: false });
    await journal.note("a", "another key", { expiresMs: 1, isUnknown: false });
    const [open] = await journal.list();
    assert.deepEqual([open.expiresMs, open.isUnknown, open.operationId], [5000, true, "op-1"]);
  });

  test(`a full journal refuses new intents only (${name})`, async () => {
    const journal = start({ maxOpen: 2 });
    const a = await journal.intend("a", REQUEST, DAY_MS, 0);
    const b = await journal.intend("b", REQUEST, DAY_MS, 0);
    await assert.rejects(journal.intend("c", REQUEST, DAY_MS, 0), JournalFull);
    assert.equal((await journal.intend("b", REQUEST, DAY_MS, 0)).key, b.key);
    await journal.finish("a", a.key, STORED, 0);
    await journal.intend("c", REQUEST, DAY_MS, 0);
  });

  test(`a forgotten intent gets a new key (${name})`, async () => {
    const journal = start();
    const first = await journal.intend("a", REQUEST, DAY_MS, 0);
    assert.equal(await journal.forget("a"), true);
    assert.equal(await journal.forget("a"), false);
    assert.equal(await journal.find("a"), undefined);
    assert.notEqual((await journal.intend("a", REQUEST, DAY_MS, 0)).key, first.key);
  });

  test(`intents at once have one key (${name})`, async () => {
    const journals = name === "memory" ? [start()] : [start(), start(), start()];
    const intends = Array.from({ length: 30 }, (_, nth) =>
      journals[nth % journals.length].intend("a", REQUEST, DAY_MS, 0),
    );
    const keys = (await Promise.all(intends)).map(({ key }) => key);
    assert.equal(new Set(keys).size, 1);
  });

  test(`more open intents than a page are listed in order (${name})`, async () => {
    const journal = start();
    const names = Array.from({ length: 250 }, (_, nth) => `intent-${nth}`);
    for (const intent of names) await journal.intend(intent, REQUEST, DAY_MS, 0);
    assert.deepEqual((await journal.list()).map(({ intent }) => intent), names);
  });
}

test("the intent commits with the row that caused it", async (context) => {
  if (pool === undefined) {
    console.log("SKIPPED: DATABASE_URL names no database");
    return context.skip();
  }
  const database = await pool.connect();
  const journal = new PgJournal(pool);
  const headers = { authorization: "Bearer secret", "content-type": "application/json" };
  const init = { method: "POST", headers, body: "{}" };
  for (const end of ["ROLLBACK", "COMMIT"]) {
    await database.query("BEGIN");
    await intend(database, "invoice-7781", "https://api.example/payments", init);
    assert.equal(await journal.find("invoice-7781"), undefined);
    await database.query(end);
  }
  database.release();
  const { request } = await journal.find("invoice-7781");
  assert.deepEqual(request.headers, [["authorization", ""], ["content-type", "application/json"]]);
  assert.deepEqual((await journal.list()).map(({ intent }) => intent), ["invoice-7781"]);
});

test("a database that is away is a journal error", async () => {
  const away = { query: () => Promise.reject(new Error("connect ECONNREFUSED")) };
  await assert.rejects(new PgJournal(away).find("a"), JournalError);
});

test("a torn last record is ignored, and what follows it is not", async () => {
  const first = await openFile().intend("a", REQUEST, DAY_MS, 0);
  const { size } = await stat(path);
  await openFile().intend("b", REQUEST, DAY_MS, 0);
  const end = (await stat(path)).size;
  // A process that is killed inside a write leaves any part of a record.
  for (let cut = size + 1; cut < end; cut += 7) {
    await truncate(path, cut);
    const journal = openFile();
    assert.equal((await journal.find("a")).key, first.key);
    assert.equal(await journal.find("b"), undefined);
    const { key } = await journal.intend("b", REQUEST, DAY_MS, 0);
    assert.equal((await openFile().find("b")).key, key);
    await journal.close();
    await truncate(path, size);
    await openFile().intend("b", REQUEST, DAY_MS, 0);
  }
});

test("a torn first record is ignored", async () => {
  await openFile().intend("a", REQUEST, DAY_MS, 0);
  const whole = await readFile(path);
  const header = whole.indexOf("\n", 1);
  for (let cut = 0; cut < header; cut += 3) {
    await writeFile(path, whole.subarray(0, cut));
    const { key } = await openFile().intend("a", REQUEST, DAY_MS, 0);
    assert.equal((await openFile().find("a")).key, key);
  }
});

test("a damaged record is refused: its key may be lost", async () => {
  await openFile().intend("a", REQUEST, DAY_MS, 0);
  const bytes = await readFile(path);
  bytes[bytes.indexOf('"a"') + 1] ^= 1;
  await writeFile(path, bytes);
  await assert.rejects(openFile().find("a"), /damaged/);
});

test("a file of another program is refused", async () => {
  await writeFile(path, "theirs\nand theirs\n");
  await assert.rejects(openFile().intend("a", REQUEST, DAY_MS, 0), /another program/);
  assert.equal(await readFile(path, "utf8"), "theirs\nand theirs\n");
});

test("a journal is compacted, keeps what it needs, and forgets what is past its retention", async () => {
  const journal = openFile({ retentionMs: 1000 });
  const other = openFile({ retentionMs: 1000 });
  const open = await journal.intend("open", REQUEST, DAY_MS, 0);
  await journal.note("open", open.key, { expiresMs: 5000, isUnknown: true, operationId: "op-1" });
  await journal.start("open", open.key);
  const body = new Uint8Array(50_000);
  let latest;
  let nth = 0;
  // The size of the file is bounded, however many intents there were.
  for (; nth < 120; nth += 1) {
    const { key } = await journal.intend(`past-${nth}`, { ...REQUEST, body }, DAY_MS, nth * 100);
    latest = await journal.finish(`past-${nth}`, key, { ...STORED, body }, nth * 100);
  }
  const files = await readdir(directory);
  assert.equal(files.length, 1, String(files));
  assert.match(files[0], /^journal\.semel-[1-9][0-9]*$/);
  const { size } = await stat(join(directory, files[0]));
  assert.ok(size < 5 * 1024 * 1024, String(size));
  // A process that had the old file open, and one that starts.
  for (const one of [other, openFile()]) {
    const [found] = await one.list();
    assert.deepEqual([found.key, found.expiresMs, found.operationId], [open.key, 5000, "op-1"]);
    assert.deepEqual((await one.find("open")).request, REQUEST);
    assert.deepEqual((await one.find(`past-${nth - 1}`)).response, latest);
    assert.equal(await one.find("past-0"), undefined);
    assert.equal(await one.finish("open", open.key, STORED, nth * 100, true), undefined);
  }
});

test("processes that append while the journal is compacted lose nothing", async () => {
  const program = fileURLToPath(new URL("./appender.mjs", import.meta.url));
  const runs = ["a", "b", "c"].map(
    (name) =>
      new Promise((done, failed) => {
        const child = fork(program, [path, name, "40"], { silent: true });
        let output = "";
        child.stdout.on("data", (chunk) => (output += chunk));
        child.stderr.on("data", (chunk) => (output += chunk));
        child.once("close", (code) => (code === 0 ? done(output) : failed(new Error(output))));
      }),
  );
  const written = Object.assign({}, ...(await Promise.all(runs)).map((output) => JSON.parse(output)));
  assert.equal(Object.keys(written).length, 120);
  const journal = openFile();
  for (const [intent, key] of Object.entries(written)) {
    assert.equal((await journal.find(intent))?.key, key, intent);
  }
  const generations = (await readdir(directory)).map((name) => Number(name.split("-")[1] ?? 0));
  assert.ok(Math.max(...generations) > 1, String(generations));
});

test("an entry that another process appended later has no effect", async () => {
  const first = await openFile().intend("a", REQUEST, DAY_MS, 0);
  const { encode } = await import(new URL("../node_modules/semel/dist/client/records.js", import.meta.url));
  const { fingerprint, request } = first;
  const open = { t: "open", intent: "a", key: "another key", fingerprint, ...request, body: "", created: 1, expires: 2 };
  await appendFile(path, encode(open).bytes);
  assert.equal((await openFile().find("a")).key, first.key);
});

test("a compaction that was interrupted after its seal is finished by the next process", async () => {
  const first = await openFile().intend("a", REQUEST, DAY_MS, 0);
  const { encode } = await import(new URL("../node_modules/semel/dist/client/records.js", import.meta.url));
  await appendFile(path, encode({ t: "seal" }).bytes);
  // It was alive, and did not see the seal.
  await appendFile(path, encode({ t: "forget", intent: "a", key: first.key }).bytes);
  await writeFile(`${path}.semel-1.77.0-a.draft`, "unfinished");
  assert.equal((await openFile().find("a")).key, first.key);
  assert.deepEqual(await readdir(directory), ["journal.semel-1"]);
});

test("a copy beside the journal is not taken for it", async () => {
  const first = await openFile().intend("a", REQUEST, DAY_MS, 0);
  await copyFile(path, `${path}.20261119`);
  const second = await openFile().intend("b", REQUEST, DAY_MS, 0);
  assert.equal((await openFile().find("b")).key, second.key);
  // Under the name of a generation it could hold fewer keys than the journal.
  await copyFile(path, `${path}.semel-7`);
  await assert.rejects(openFile().intend("a", REQUEST, DAY_MS, 0), /generation 0 of journal/);
  await rm(`${path}.semel-7`);
  assert.equal((await openFile().find("a")).key, first.key);
});

test("another journal under the name of the next generation is refused", async () => {
  const journal = openFile();
  await journal.intend("a", REQUEST, DAY_MS, 0);
  const { encode } = await import(new URL("../node_modules/semel/dist/client/records.js", import.meta.url));
  await writeFile(`${path}.semel-1`, encode({ t: "journal", version: 1, id: "another", generation: 1 }).bytes);
  await appendFile(path, encode({ t: "seal" }).bytes);
  await assert.rejects(journal.find("a"), /another journal/);
});
