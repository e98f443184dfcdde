// Journals: where an intent, its key and its request are stored before anything is sent.

import { randomUUID } from "node:crypto";

import type { Note } from "./attempts.js";
import { IntentConflict, JournalFull } from "./errors.js";
import { fingerprint, type Headers, type StoredRequest } from "./messages.js";

/** How long a caller may repeat itself: the same name is a new intent after it. */
export const RETENTION_MS = 90 * 24 * 3600 * 1000;
/** Open intents need a person long before there are so many. */
export const MAX_OPEN = 50_000;
export const MAX_INTENT_BYTES = 255;

export interface StoredResponse {
  readonly status: number;
  readonly headers: Headers;
  /** Undefined: it was over the bound. */
  readonly body: Uint8Array | undefined;
}

/** An intent: something that should happen once. */
export interface Entry {
  readonly intent: string;
  readonly key: string;
  readonly fingerprint: string;
  /** Without credentials; without its body once the intent is finished. */
  readonly request: StoredRequest;
  readonly createdMs: number;
  /** After this time the server may no longer know the key, so nothing is sent. */
  readonly expiresMs: number;
  readonly note: Note;
  /** Whether it may have been sent before: by another call, or by a process that died. */
  readonly isSent: boolean;
  /** Undefined while the intent is open. */
  readonly response?: StoredResponse | undefined;
  /**
   * The header with the key as it was first sent, such as `idempotency-key: "{key}"`: in another form it would
   * be another key. Undefined: it was not sent.
   */
  readonly keyForm?: string | undefined;
}

/** An intent without a final response. */
export interface OpenIntent {
  readonly intent: string;
  readonly key: string;
  readonly method: string;
  readonly url: string;
  readonly createdMs: number;
  readonly expiresMs: number;
  readonly isUnknown: boolean;
  readonly operationId: string | undefined;
}

/**
 * A store of intents. What a method wrote is durable when its promise is fulfilled.
 *
 * Safe with several processes: the first entry and the first response of an intent stay.
 */
export interface Journal {
  /**
   * Stores a new intent with a new key, and returns what is known of it. The request is without
   * credentials. `isSent` is false if this call stored it; else it marks the intent as shared. Throws
   * `IntentConflict` and `JournalFull`.
   */
  intend(
    intent: string,
    request: StoredRequest,
    lifetimeMs: number,
    nowMs: number,
    keyForm?: string,
  ): Promise<Entry>;
  find(intent: string): Promise<Entry | undefined>;
  /**
   * The entry of an intent that is about to be sent without a call. It is marked as shared, or, where an
   * application can store intents that it does not send, as sent, with this form of the key.
   */
  start(intent: string, key: string, keyForm?: string): Promise<Entry | undefined>;
  /** Remembers what a response said before the call ends. */
  note(intent: string, key: string, note: Note): Promise<void>;
  /**
   * Stores the final response, and returns the one that is stored. With `unlessShared` an intent that is shared
   * stays open, and the result is undefined: the response says nothing of what another process may have sent
   * before.
   */
  finish(
    intent: string,
    key: string,
    response: StoredResponse,
    nowMs: number,
    unlessShared?: boolean,
  ): Promise<StoredResponse | undefined>;
  /** The open intents in the order in which they were stored. */
  list(): Promise<OpenIntent[]>;
  /** Removes an intent, because a person asked for it: its next call is a new operation. */
  forget(intent: string): Promise<boolean>;
  close(): Promise<void>;
}

export interface JournalOptions {
  readonly maxOpen?: number;
  readonly retentionMs?: number;
}

export function newEntry(
  intent: string,
  request: StoredRequest,
  lifetimeMs: number,
  nowMs: number,
  keyForm: string | undefined,
): Entry {
  return {
    intent,
    key: randomUUID(),
    fingerprint: fingerprint(request),
    request,
    createdMs: nowMs,
    expiresMs: nowMs + lifetimeMs,
    note: { isUnknown: false },
    isSent: false,
    keyForm,
  };
}

/** The entry of an open intent after a note. */
export function withNote(entry: Entry, note: Note): Entry {
  return {
    ...entry,
    expiresMs: Math.min(entry.expiresMs, note.expiresMs ?? entry.expiresMs),
    note: {
      isUnknown: entry.note.isUnknown || note.isUnknown,
      operationId: note.operationId ?? entry.note.operationId,
    },
  };
}

export function openIntent(entry: Entry): OpenIntent {
  return {
    intent: entry.intent,
    key: entry.key,
    method: entry.request.method,
    url: entry.request.url,
    createdMs: entry.createdMs,
    expiresMs: entry.expiresMs,
    isUnknown: entry.note.isUnknown,
    operationId: entry.note.operationId,
  };
}

export function tooManyOpen(maxOpen: number): JournalFull {
  return new JournalFull(`${maxOpen} intents are open, and no more may be`);
}

/** Everything but crash safety. */
export class MemoryJournal implements Journal {
  // In the order in which they were stored, and in which they were finished.
  readonly #open = new Map<string, Entry>();
  readonly #finished = new Map<string, { entry: Entry; finishedMs: number }>();
  /** The keys of open intents that others than those who stored them may have sent. */
  readonly #shared = new Set<string>();
  readonly #maxOpen: number;
  readonly #retentionMs: number;

  constructor(options: JournalOptions = {}) {
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
    const known = this.#share(intent);
    const entry = newEntry(intent, request, lifetimeMs, nowMs, keyForm);
    if (known !== undefined) {
      if (known.fingerprint !== entry.fingerprint) throw new IntentConflict(intent);
      return known;
    }
    if (this.#open.size >= this.#maxOpen) throw tooManyOpen(this.#maxOpen);
    this.#open.set(intent, { ...entry, isSent: true });
    return entry;
  }

  async find(intent: string): Promise<Entry | undefined> {
    return this.#find(intent);
  }

  async start(intent: string): Promise<Entry | undefined> {
    return this.#share(intent);
  }

  async note(intent: string, key: string, note: Note): Promise<void> {
    const entry = this.#open.get(intent);
    if (entry?.key === key) this.#open.set(intent, withNote(entry, note));
  }

  async finish(
    intent: string,
    key: string,
    response: StoredResponse,
    nowMs: number,
    unlessShared = false,
  ): Promise<StoredResponse | undefined> {
    const entry = this.#open.get(intent);
    if (entry?.key === key) {
      if (unlessShared && this.#shared.has(key)) return undefined;
      this.#shared.delete(key);
      this.#open.delete(intent);
      const request = { ...entry.request, body: new Uint8Array() };
      this.#finished.set(intent, { entry: { ...entry, request, response }, finishedMs: nowMs });
      this.#prune(nowMs);
      return response;
    }
    const known = this.#finished.get(intent)?.entry;
    // Otherwise forgotten meanwhile, by a person.
    return (known?.key === key ? known.response : undefined) ?? response;
  }

  async list(): Promise<OpenIntent[]> {
    return [...this.#open.values()].map(openIntent);
  }

  async forget(intent: string): Promise<boolean> {
    this.#shared.delete(this.#open.get(intent)?.key ?? "");
    const wasOpen = this.#open.delete(intent);
    return this.#finished.delete(intent) || wasOpen;
  }

  async close(): Promise<void> {}

  #share(intent: string): Entry | undefined {
    const open = this.#open.get(intent);
    if (open !== undefined) this.#shared.add(open.key);
    return this.#find(intent);
  }

  #find(intent: string): Entry | undefined {
    return this.#open.get(intent) ?? this.#finished.get(intent)?.entry;
  }

  #prune(nowMs: number): void {
    for (const [intent, { finishedMs }] of this.#finished) {
      if (finishedMs + this.#retentionMs > nowMs) return;
      this.#finished.delete(intent);
    }
  }
}
