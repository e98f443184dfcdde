// Appends intents to a journal while it is compacted: `appender.mjs FILE NAME COUNT`. Prints their keys.

import { FileJournal } from "semel/client";

const [path, name, count] = process.argv.slice(2);
const journal = new FileJournal(path, { retentionMs: 1 });
const request = { method: "POST", url: "http://127.0.0.1/", headers: [], body: new Uint8Array(30_000) };
const stored = { status: 200, headers: [], body: new Uint8Array(60_000) };
const keys = {};
for (let nth = 0; nth < Number(count); nth += 1) {
  const kept = `${name}-${nth}`;
  keys[kept] = (await journal.intend(kept, request, 1000, nth)).key;
  // Past its retention at once: what a compaction leaves out.
  const past = `${name}-past-${nth}`;
  const { key } = await journal.intend(past, request, 1000, nth);
  await journal.finish(past, key, stored, nth - 10);
}
console.log(JSON.stringify(keys));
