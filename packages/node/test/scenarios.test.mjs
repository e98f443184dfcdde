// The scenarios that the clients in all languages run.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import {
  CallError,
  CallResponse,
  Client,
  Failed,
  FileJournal,
  GaveUp,
  IETF,
  IntentConflict,
  KeyExpired,
  KeyReused,
  MemoryJournal,
  OutcomeUnknown,
  ResponseNotStored,
  STRIPE,
} from "semel/client";

import { expectedBody, ScriptedServer } from "./scripted_server.mjs";

const file = process.env.SEMEL_SCENARIOS ?? new URL("../../scenarios/client.json", import.meta.url);
const { scenarios } = JSON.parse(await readFile(file, "utf8"));
const directory = await mkdtemp(join(tmpdir(), "semel-"));
after(() => rm(directory, { recursive: true }));

const PROFILES = { ietf: IETF, stripe: STRIPE };
const ERRORS = {
  unknown: OutcomeUnknown,
  key_reused: KeyReused,
  key_expired: KeyExpired,
  response_not_stored: ResponseNotStored,
  gave_up: GaveUp,
  intent_conflict: IntentConflict,
  failed: Failed,
};

/** What a scenario needs besides its client: clock, server and the delays so far. */
class Scenario {
  nowMs = 1_800_000_000_000;
  delays = [];
  oversleepMs = 0;

  constructor(script, newJournal) {
    this.script = script;
    this.newJournal = newJournal;
    this.server = new ScriptedServer(script.profile, () => this.nowMs);
    this.server.meanwhile = (respond) => this.meanwhile(respond);
  }

  /** Time passes, and another process finds the intent. */
  async meanwhile(respond) {
    this.nowMs += respond.takes_ms ?? 0;
    if (!respond.found_by_another) return;
    const unreachable = async () => Promise.reject(new TypeError("failed", { cause: new Error("unreachable") }));
    const quota = { capacity: 0, cost: 5, refillPerSecond: 0 };
    const another = this.startClient({ fetch: unreachable, quota });
    assert.ok((await this.call(another, this.lastCall)) instanceof GaveUp);
    await another.close();
  }

  startClient(more = {}) {
    const { quota, ...rest } = this.script.client ?? {};
    const options = Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value]));
    if (quota !== undefined) {
      const { capacity, cost, refill_per_second: refillPerSecond } = quota;
      options.quota = { capacity, cost, refillPerSecond };
    }
    return new Client({
      ...options,
      journal: this.newJournal(),
      profile: PROFILES[this.script.profile],
      clock: () => this.nowMs,
      random: () => 1,
      // The order of the requests is part of a scenario.
      resumeAtOnce: 1,
      sleep: async (ms) => {
        this.delays.push(ms);
        this.nowMs += ms + this.oversleepMs;
        this.oversleepMs = 0;
        await this.server.onSleep();
      },
      ...more,
    });
  }

  async run() {
    await this.server.start();
    let client = this.startClient();
    try {
      for (const step of this.script.steps) {
        if (step.restart) {
          await client.close();
          client = this.startClient({ profile: PROFILES[step.profile ?? this.script.profile] });
        } else if (step.advance_ms !== undefined) {
          this.nowMs += step.advance_ms;
        } else {
          await this.step(client, step);
        }
      }
    } finally {
      await client.close();
      await this.server.close();
    }
  }

  async step(client, step) {
    this.delays = [];
    this.oversleepMs = step.oversleep_ms ?? 0;
    await this.server.begin(step.exchanges ?? []);
    if (step.resume) {
      const reports = await client.resume();
      assert.deepEqual(reports.map(({ intent }) => intent), Object.keys(step.results));
      for (const { intent, response, error } of reports) {
        compare(step.results[intent], response ?? error, true);
      }
    } else if (step.calls) {
      const results = await Promise.all(step.calls.map((call) => this.call(client, call)));
      results.forEach((result, nth) => compare(step.results[nth], result, false));
    } else {
      compare(step.result, await this.call(client, step.call), true);
    }
    this.server.end();
    assert.deepEqual(this.server.problems, []);
    assert.deepEqual(this.delays, step.delays_ms ?? []);
  }

  async call(client, call) {
    const { intent = null, method, path, headers = {} } = call;
    const body = expectedBody(call);
    this.lastCall = call;
    try {
      return await client.call(intent, this.server.url + path, { method, headers, body });
    } catch (error) {
      if (error instanceof CallError) return error;
      throw error;
    }
  }
}

function compare(expected, result, isAlone) {
  if (expected.kind !== "response") {
    assert.equal(result.constructor, ERRORS[expected.kind], String(result));
    if (expected.kind === "unknown") assert.equal(result.operationId ?? null, expected.operation_id);
    if (expected.kind === "response_not_stored") {
      const { status, body } = result.response;
      // Where the journal does not have it.
      assert.equal(body.length === 0 ? status : undefined, expected.status);
    }
    if (expected.kind === "gave_up") assert.equal(result.reason, expected.reason);
    return;
  }
  assert.ok(result instanceof CallResponse, String(result));
  assert.equal(result.status, expected.status);
  bodies.push([result, expected.body]);
  if (isAlone) assert.equal(result.replayedFromJournal, expected.replayed_from_journal ?? false);
}

// Read when a scenario is over: a body is read once.
let bodies = [];

function camel(name) {
  return name.replaceAll(/_([a-z])/g, (_, letter) => letter.toUpperCase());
}

for (const [nth, script] of scenarios.entries()) {
  const memory = new MemoryJournal();
  const journals = {
    file: () => new FileJournal(join(directory, `${nth}.journal`)),
    memory: () => memory,
  };
  for (const [name, newJournal] of Object.entries(journals)) {
    test(`${script.name} (${name})`, async () => {
      bodies = [];
      await new Scenario(script, newJournal).run();
      for (const [response, body] of bodies) assert.equal(await response.text(), body);
    });
  }
}
