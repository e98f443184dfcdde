/**
 * The journal in the application's PostgreSQL, through `pg`. The intent commits with the row that caused
 * it:
 *
 * ```js
 * await client.query("BEGIN");
 * await client.query("INSERT INTO invoices …");
 * await intend(client, "invoice-7781", "https://api.example/payments", { method: "POST", body });
 * await client.query("COMMIT");
 * await semel.finish("invoice-7781");
 * ```
 *
 * If the process dies after the commit, `resume` sends the request in another one. If the transaction is
 * rolled back, nothing is sent.
 *
 * @module
 */

import { readFileSync } from "node:fs";

import type { Note } from "./attempts.js";
import { SECRET_HEADERS } from "./client.js";
import { IntentConflict, JournalError, JournalFull } from "./errors.js";
import { readRequest } from "./exchange.js";
import {
  MAX_OPEN,
  RETENTION_MS,
  type Entry,
  type Journal,
  type JournalOptions,
  type OpenIntent,
  type StoredResponse,
} from "./journal.js";
import { maskHeaders, type Headers, type StoredRequest } from "./messages.js";

/** A `Pool` or `Client` of `pg`. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
}

export interface IntendOptions {
  /** See `ClientOptions`. */
  readonly keyLifetimeMs?: number;
  readonly secretHeaders?: readonly string[];
}

/** What `semel.intend` raises where the intent is known with another request, and where too many are open. */
const CONFLICT = "SEM03";
const FULL = "SEM04";
const PAGE = 100;
/** PostgreSQL's largest `bigint`. */
const NEVER_US = "9223372036854775807";
const DAY_MS = 24 * 3600 * 1000;

// The statements of the Rust client, which are built into the package: there is one schema.
const SCHEMA = statement("migrations/postgres.sql");
const INTEND = statement("queries/postgres/intend.sql");
const FIND = statement("queries/postgres/find.sql");
const START = statement("queries/postgres/start.sql");
const NOTE = statement("queries/postgres/note.sql");
const FINISH = statement("queries/postgres/finish.sql");
const LIST_OPEN = statement("queries/postgres/list_open.sql");
const FORGET = statement("queries/postgres/forget.sql");

/** Creates the tables and functions in the schema `semel`; safe to run again. */
export async function install(database: Queryable): Promise<void> {
  await database.query(SCHEMA);
}

/** Stores an intent in the open transaction of a `pg` client. Credentials are not stored. */
export async function intend(
  transaction: Queryable,
  intent: string,
  input: string | URL | Request,
  init?: RequestInit,
  options: IntendOptions = {},
): Promise<void> {
  const request = await readRequest(input, init);
  const secret = new Set((options.secretHeaders ?? SECRET_HEADERS).map((name) => name.toLowerCase()));
  const stored = { ...request, headers: maskHeaders(request.headers, secret) };
  const values = row(intent, stored, options.keyLifetimeMs ?? DAY_MS, MAX_OPEN, null, false);
  await query(transaction, INTEND, values);
}

/** Safe with several processes. It does not close its pool. */
export class PgJournal implements Journal {
  readonly #maxOpen: number;
  readonly #retentionMs: number;

  constructor(
    readonly pool: Queryable,
    options: JournalOptions = {},
  ) {
    this.#maxOpen = options.maxOpen ?? MAX_OPEN;
    this.#retentionMs = options.retentionMs ?? RETENTION_MS;
  }

  async intend(
    intent: string,
    request: StoredRequest,
    lifetimeMs: number,
    nowMs: number,
    keyForm?: string,
  ): Promise<Entry> {
    const values = row(intent, request, lifetimeMs, this.#maxOpen, nowMs * 1000, true, keyForm);
    const entry = toEntry(await query(this.pool, INTEND, values));
    if (entry === undefined) throw new JournalError("the intent vanished from the journal");
    return entry;
  }

  async find(intent: string): Promise<Entry | undefined> {
    return toEntry(await query(this.pool, FIND, [intent]));
  }

  async start(intent: string, key: string, keyForm?: string): Promise<Entry | undefined> {
    return toEntry(await query(this.pool, START, [intent, key, keyForm ?? null]));
  }

  async note(intent: string, key: string, note: Note): Promise<void> {
    const expiresUs = note.expiresMs === undefined ? NEVER_US : note.expiresMs * 1000;
    await query(this.pool, NOTE, [intent, key, expiresUs, note.isUnknown, note.operationId ?? null]);
  }

  async finish(
    intent: string,
    key: string,
    response: StoredResponse,
    nowMs: number,
    unlessShared = false,
  ): Promise<StoredResponse | undefined> {
    const { status, headers } = response;
    const body = response.body === undefined ? null : Buffer.from(response.body);
    const beforeUs = (nowMs - this.#retentionMs) * 1000;
    const times = [beforeUs, nowMs * 1000];
    const values = [intent, key, status, JSON.stringify(headers), body, ...times, unlessShared];
    const entry = toEntry(await query(this.pool, FINISH, values));
    // Otherwise forgotten meanwhile, by a person.
    return entry === undefined ? response : entry.response;
  }

  async list(): Promise<OpenIntent[]> {
    const found: OpenIntent[] = [];
    for (;;) {
      const page = await query(this.pool, LIST_OPEN, [found.at(-1)?.intent ?? null, PAGE]);
      found.push(...page.map(toOpen));
      if (page.length < PAGE) return found;
    }
  }

  async forget(intent: string): Promise<boolean> {
    const [answered] = await query(this.pool, FORGET, [intent]);
    return answered?.["forget_intent"] === true;
  }

  async close(): Promise<void> {}
}

function statement(path: string): string {
  return readFileSync(new URL(`../../sql/${path}`, import.meta.url), "utf8");
}

async function query(
  database: Queryable,
  text: string,
  values: unknown[],
): Promise<Record<string, unknown>[]> {
  try {
    return (await database.query(text, values)).rows;
  } catch (cause) {
    const code = cause instanceof Error && "code" in cause ? cause.code : undefined;
    if (code === CONFLICT) throw new IntentConflict(String(values[0]));
    const message = cause instanceof Error ? cause.message : String(cause);
    if (code === FULL) throw new JournalFull(message, { cause });
    throw new JournalError(`the journal cannot be used: ${message}`, { cause });
  }
}

function row(
  intent: string,
  request: StoredRequest,
  lifetimeMs: number,
  maxOpen: number,
  nowUs: number | null,
  isSending: boolean,
  keyForm?: string,
): unknown[] {
  const headers = JSON.stringify(request.headers);
  const body = Buffer.from(request.body);
  const sent = [request.method, request.url, headers, body];
  return [intent, ...sent, lifetimeMs / 1000, maxOpen, nowUs, isSending, keyForm ?? null];
}

/** Undefined: no row, or a function that returned no row, which is one of nulls. */
function toEntry(rows: Record<string, unknown>[]): Entry | undefined {
  const found = rows[0];
  if (found === undefined || found["intent"] === null) return undefined;
  const open = toOpen(found);
  const headers = found["headers"] as Headers;
  const body = bytes(found["body"]) ?? new Uint8Array();
  const isFinished = found["status"] !== null;
  return {
    ...open,
    fingerprint: Buffer.from(found["fingerprint"] as Buffer).toString("hex"),
    request: { method: open.method, url: open.url, headers, body },
    note: { isUnknown: open.isUnknown, operationId: open.operationId },
    isSent: found["is_sent"] as boolean,
    keyForm: (found["key_form"] as string | null) ?? undefined,
    response: isFinished
      ? {
          status: found["status"] as number,
          headers: found["response_headers"] as Headers,
          body: bytes(found["response_body"]),
        }
      : undefined,
  };
}

function toOpen(found: Record<string, unknown>): OpenIntent {
  return {
    intent: found["intent"] as string,
    key: found["key"] as string,
    method: found["method"] as string,
    url: found["url"] as string,
    // `pg` returns a `bigint` as text.
    createdMs: Math.floor(Number(found["created_at"]) / 1000),
    expiresMs: Math.floor(Number(found["expires_at"]) / 1000),
    isUnknown: found["is_unknown"] as boolean,
    operationId: (found["operation_id"] as string | null) ?? undefined,
  };
}

function bytes(value: unknown): Uint8Array | undefined {
  return value === null ? undefined : new Uint8Array(value as Buffer);
}
