// The journal in a local file.

import type { Note } from "./attempts.js";
import { IntentConflict, JournalError } from "./errors.js";
import { JournalFile, type RecordPosition, type Reader } from "./journal_file.js";
import {
  MAX_OPEN,
  newEntry,
  RETENTION_MS,
  tooManyOpen,
  type Entry,
  type Journal,
  type JournalOptions,
  type OpenIntent,
  type StoredResponse,
} from "./journal.js";
import type { StoredRequest } from "./messages.js";
import type { JournalRecord } from "./records.js";

/** Below this size a file is not compacted; above it, when more than half of it is not needed any more. */
const COMPACT_BYTES = 1024 * 1024;

type OpenRecord = Extract<JournalRecord, { t: "open" }>;
type DoneRecord = Extract<JournalRecord, { t: "done" }>;

/** What is kept in memory of an intent; bodies stay in the file. */
interface Known {
  readonly intent: string;
  readonly key: string;
  readonly fingerprint: string;
  readonly method: string;
  readonly url: string;
  readonly createdMs: number;
  readonly opened: RecordPosition;
  /** The size of the request's body in the file. */
  readonly bodyLength: number;
  isShared: boolean;
  expiresMs: number;
  isUnknown: boolean;
  operationId: string | undefined;
  finished?: { readonly position: RecordPosition; readonly atMs: number };
}

/** The intents of a file, in the order in which they were stored. */
class Index implements Reader {
  readonly known = new Map<string, Known>();
  open = 0;

  constructor(
    readonly retentionMs: number,
    public nowMs: () => number,
  ) {}

  reset(): void {
    this.known.clear();
    this.open = 0;
  }

  apply(record: JournalRecord, position: RecordPosition): void {
    if (record.t === "journal" || record.t === "seal") return;
    const known = this.known.get(record.intent);
    if (record.t === "open") {
      // The first one stays, whichever process wrote it: a second key would be a second effect.
      if (known !== undefined) return;
      this.open += 1;
      this.known.set(record.intent, {
        intent: record.intent,
        key: record.key,
        fingerprint: record.fingerprint,
        method: record.method,
        url: record.url,
        createdMs: record.created,
        opened: position,
        bodyLength: record.body.length,
        isShared: record.shared ?? false,
        expiresMs: record.expires,
        isUnknown: false,
        operationId: undefined,
      });
      return;
    }
    if (known?.key !== record.key) return;
    if (record.t === "forget") {
      if (known.finished === undefined) this.open -= 1;
      this.known.delete(record.intent);
    } else if (known.finished !== undefined) {
      // The first response stays: callers must not see two.
      return;
    } else if (record.t === "share") {
      known.isShared = true;
    } else if (record.t === "done") {
      if (record.unless_shared && known.isShared) return;
      known.finished = { position, atMs: record.at };
      this.open -= 1;
    } else {
      known.expiresMs = Math.min(known.expiresMs, record.expires ?? known.expiresMs);
      known.isUnknown ||= record.unknown;
      known.operationId = record.operation ?? known.operationId;
    }
  }

  /** The bytes that a compaction would keep, about. */
  needed(): number {
    let bytes = 0;
    for (const known of this.known.values()) {
      if (this.isPast(known)) continue;
      bytes += known.opened.length;
      if (known.finished !== undefined) bytes += known.finished.position.length - known.bodyLength;
    }
    return bytes;
  }

  isPast(known: Known): boolean {
    return known.finished !== undefined && known.finished.atMs + this.retentionMs <= this.nowMs();
  }

  async *compacted(read: (position: RecordPosition) => Promise<JournalRecord>): AsyncIterable<JournalRecord> {
    for (const known of this.known.values()) {
      if (this.isPast(known)) continue;
      const opened = (await read(known.opened)) as OpenRecord;
      if (known.finished !== undefined) {
        // It is never sent again.
        yield { ...opened, body: "" };
        yield await read(known.finished.position);
        continue;
      }
      yield { ...opened, expires: known.expiresMs, shared: known.isShared };
      const { intent, key, isUnknown: unknown, operationId: operation } = known;
      if (unknown) yield { t: "note", intent, key, unknown, operation };
    }
  }
}

/**
 * A local file for any number of processes, durable at every step. It holds requests and responses, so
 * it is created for its owner alone. After a compaction it is called `path.semel-1`, `path.semel-2`, ….
 */
export class FileJournal implements Journal {
  readonly #file: JournalFile;
  readonly #index: Index;
  readonly #maxOpen: number;
  #nowMs = 0;
  /** The size at which the next compaction is considered. */
  #considerAt = COMPACT_BYTES;

  constructor(path: string, options: JournalOptions = {}) {
    this.#maxOpen = options.maxOpen ?? MAX_OPEN;
    this.#index = new Index(options.retentionMs ?? RETENTION_MS, () => this.#nowMs);
    this.#file = new JournalFile(path, this.#index);
  }

  async intend(
    intent: string,
    request: StoredRequest,
    lifetimeMs: number,
    nowMs: number,
    keyForm?: string,
  ): Promise<Entry> {
    this.#nowMs = nowMs;
    const fresh = newEntry(intent, request, lifetimeMs, nowMs, keyForm);
    let known = await this.find(intent);
    if (known === undefined) {
      if (this.#index.open >= this.#maxOpen) throw tooManyOpen(this.#maxOpen);
      await this.#compactWhereWorthwhile();
      const { key, fingerprint, createdMs: created, expiresMs: expires } = fresh;
      const { method, url, headers } = request;
      const body = toBase64(request.body);
      await this.#file.append({
        t: "open", intent, key, fingerprint, method, url, headers, body, created, expires, form: keyForm,
      });
      known = await this.find(intent);
    }
    // Another process may have been the first.
    if (known?.key !== fresh.key) known = await this.start(intent);
    if (known === undefined) throw new JournalError("the intent vanished from the journal");
    if (known.fingerprint !== fresh.fingerprint) throw new IntentConflict(intent);
    return { ...known, isSent: known.key !== fresh.key };
  }

  async find(intent: string): Promise<Entry | undefined> {
    return this.#file.read(async (read) => {
      const known = this.#index.known.get(intent);
      if (known === undefined) return undefined;
      const opened = (await read(known.opened)) as OpenRecord;
      const { key, fingerprint, method, url, createdMs, expiresMs, isUnknown, operationId } = known;
      const body = fromBase64(opened.body);
      const request = { method, url, headers: opened.headers, body };
      const note: Note = { isUnknown, operationId };
      const times = { createdMs, expiresMs };
      const entry: Entry = { intent, key, fingerprint, request, ...times, note, isSent: true, keyForm: opened.form };
      if (known.finished === undefined) return entry;
      const done = (await read(known.finished.position)) as DoneRecord;
      const kept = done.body === null ? undefined : fromBase64(done.body);
      return { ...entry, response: { status: done.status, headers: done.headers, body: kept } };
    });
  }

  async start(intent: string): Promise<Entry | undefined> {
    const known = await this.find(intent);
    if (known === undefined || known.response !== undefined) return known;
    // Another process may have written it and not synced it yet, and its key is about to be sent.
    if (this.#index.known.get(intent)?.isShared) await this.#file.sync();
    else await this.#file.append({ t: "share", intent, key: known.key });
    return this.find(intent);
  }

  async note(intent: string, key: string, note: Note): Promise<void> {
    const { expiresMs: expires, isUnknown: unknown, operationId: operation } = note;
    await this.#file.append({ t: "note", intent, key, expires, unknown, operation });
  }

  async finish(
    intent: string,
    key: string,
    response: StoredResponse,
    nowMs: number,
    unlessShared = false,
  ): Promise<StoredResponse | undefined> {
    this.#nowMs = nowMs;
    const { status, headers } = response;
    const body = response.body === undefined ? null : toBase64(response.body);
    await this.#file.append({
      t: "done", intent, key, status, headers, body, at: nowMs, unless_shared: unlessShared,
    });
    const stored = await this.find(intent);
    // Otherwise forgotten meanwhile, by a person.
    return stored?.key === key ? stored.response : response;
  }

  async list(): Promise<OpenIntent[]> {
    return this.#file.read(() =>
      [...this.#index.known.values()]
        .filter((known) => known.finished === undefined)
        .map(({ intent, key, method, url, createdMs, expiresMs, isUnknown, operationId }) => {
          return { intent, key, method, url, createdMs, expiresMs, isUnknown, operationId };
        }),
    );
  }

  async forget(intent: string): Promise<boolean> {
    const known = await this.find(intent);
    if (known !== undefined) await this.#file.append({ t: "forget", intent, key: known.key });
    return known !== undefined;
  }

  async close(): Promise<void> {
    await this.#file.close();
  }

  async #compactWhereWorthwhile(): Promise<void> {
    if (this.#file.size < this.#considerAt) return;
    if (this.#file.size > 2 * this.#index.needed()) await this.#file.compact();
    // Looking at all intents is paid for by what was appended since.
    this.#considerAt = 1.5 * this.#file.size + COMPACT_BYTES;
  }
}

function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("base64");
}

function fromBase64(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}
