// The client: journal, requests, journal. The decisions are in `attempts`.

import { setTimeout as sleepFor } from "node:timers/promises";

import { Attempts, DEFAULT_QUOTA, Quota, type Finished, type Note, type QuotaOptions } from "./attempts.js";
import { decide } from "./decision.js";
import {
  CredentialsMissing,
  Failed,
  ForeignOrigin,
  Forgotten,
  GaveUp,
  IntentConflict,
  KeyExpired,
  KeyReused,
  ResponseNotStored,
} from "./errors.js";
import { CallResponse, exchange, readRequest } from "./exchange.js";
import { MAX_INTENT_BYTES, type Entry, type Journal, type StoredResponse } from "./journal.js";
import {
  fingerprint,
  header,
  maskHeaders,
  withoutHeaders,
  type Answer,
  type CompleteResponse,
  type StoredRequest,
} from "./messages.js";
import { IETF, keyForm, keyValue, withKeyForm, type Profile } from "./profile.js";

/** A credential in the journal would outlive its rotation, and could be read with the file. */
export const SECRET_HEADERS: readonly string[] = [
  "authorization",
  "cookie",
  "proxy-authorization",
  "x-api-key",
  "x-auth-token",
];
/** Headers that belong to a body. A request for a status has none. */
const BODY_HEADERS = [
  "content-type",
  "content-length",
  "content-encoding",
  "transfer-encoding",
  "expect",
];

/** How a client behaves. The defaults suit payments. */
export interface ClientOptions {
  readonly journal: Journal;
  readonly profile?: Profile;
  /** Headers of every request, such as credentials. They are not in the journal. */
  readonly headers?: Record<string, string>;
  /** How long a call may take; ten minutes. An open intent continues with the next call. */
  readonly deadlineMs?: number;
  /** How long one attempt may take; half a minute. */
  readonly attemptTimeoutMs?: number;
  /**
   * How long a server is assumed to know a key, 24 hours; `Idempotency-Key-Expires` shortens it. After it
   * nothing is sent, because it might execute again. Semel and Stripe keep keys for at least that long.
   */
  readonly keyLifetimeMs?: number;
  readonly quota?: QuotaOptions;
  /** The longest response that the journal keeps; 1 MiB. */
  readonly maxResponseBytes?: number;
  /** The longest request; 8 MiB. */
  readonly maxRequestBytes?: number;
  /** How many intents `resume` finishes at a time, 8. A server that hangs keeps each for a whole deadline. */
  readonly resumeAtOnce?: number;
  /**
   * The origins (`https://api.example`) of the stored requests that `resume` and `finish` send: `resume` leaves
   * out others, and `finish` refuses them. Name them where clients for several APIs share a journal, so that no
   * server gets the credentials of another. Without any, a client with `headers` resumes nothing while intents
   * of several origins are open.
   */
  readonly origins?: readonly string[];
  /** Request headers whose values the journal does not keep, besides those of `headers`. */
  readonly secretHeaders?: readonly string[];
  /** How a request is sent once. */
  readonly fetch?: typeof fetch;
  /** Milliseconds since the epoch: it is compared with what other processes stored. */
  readonly clock?: () => number;
  readonly sleep?: (ms: number, signal?: AbortSignal) => Promise<unknown>;
  /** From 0 to 1, for jitter. */
  readonly random?: () => number;
}

/** What `resume` did with an open intent: its final response, or why there is none. */
export interface Resumed {
  readonly intent: string;
  readonly response?: CallResponse;
  readonly error?: Error;
}

/** What `fetch` takes, and the intent. */
export type IntentInit = RequestInit & { readonly intent?: string };

interface Final {
  readonly response: CompleteResponse;
  readonly replayed: boolean;
}

interface Shared {
  readonly fingerprint: string;
  readonly final: Promise<Final>;
  /** Ends it when no caller waits any more. */
  readonly abort: AbortController;
  waiting: number;
}

/** Makes requests happen once. */
export class Client {
  readonly journal: Journal;
  readonly #options: Required<Omit<ClientOptions, "journal" | "quota" | "headers" | "secretHeaders">>;
  readonly #headers: readonly (readonly [string, string])[];
  readonly #secret: ReadonlySet<string>;
  readonly #quota: Quota;
  readonly #running = new Map<string, Shared>();

  constructor(options: ClientOptions) {
    this.journal = options.journal;
    this.#headers = Object.entries(options.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]);
    const secret = [...(options.secretHeaders ?? SECRET_HEADERS)].map((name) => name.toLowerCase());
    this.#secret = new Set([...secret, ...this.#headers.map(([name]) => name)]);
    this.#quota = new Quota(options.quota ?? DEFAULT_QUOTA);
    this.#options = {
      profile: options.profile ?? IETF,
      deadlineMs: options.deadlineMs ?? 600_000,
      attemptTimeoutMs: options.attemptTimeoutMs ?? 30_000,
      keyLifetimeMs: options.keyLifetimeMs ?? 24 * 3600 * 1000,
      maxResponseBytes: options.maxResponseBytes ?? 1024 * 1024,
      maxRequestBytes: options.maxRequestBytes ?? 8 * 1024 * 1024,
      resumeAtOnce: options.resumeAtOnce ?? 8,
      origins: (options.origins ?? []).map((origin) => new URL(origin).origin),
      fetch: options.fetch ?? ((input, init) => fetch(input, init)),
      clock: options.clock ?? Date.now,
      sleep: options.sleep ?? ((ms, signal) => sleepFor(ms, undefined, { signal })),
      random: options.random ?? Math.random,
    };
  }

  /**
   * The one response of an intent: the caller's own name for something that should happen once, such as
   * "invoice-7781". With `null` the request is sent without a key and without the journal, and only `GET`
   * is retried. Throws a `CallError` where there is no final response, and what `init.signal` says when it aborts:
   * then the intent stays open, and the request may have been executed.
   */
  async call(
    intent: string | null,
    input: string | URL | Request,
    init?: RequestInit,
  ): Promise<CallResponse> {
    const signal = init?.signal ?? (input instanceof Request ? input.signal : undefined);
    const request = await readRequest(input, init);
    signal?.throwIfAborted();
    if (intent === null) return respond(await this.#send(request, undefined, signal));
    this.#check(intent, request);
    const lead = (signal: AbortSignal): Promise<Final> => this.#lead(intent, request, signal);
    return respond(await this.#share(intent, fingerprint(request), lead, signal));
  }

  /** A drop-in for `fetch`: `client.fetch(url, { intent: "invoice-7781", method: "POST", … })`. */
  readonly fetch = async (input: string | URL | Request, init: IntentInit = {}): Promise<Response> => {
    const { intent, ...rest } = init;
    try {
      return await this.call(intent ?? null, input, rest);
    } catch (error) {
      // Without an intent the caller gets what came last, as from `fetch`.
      if (error instanceof Failed) throw error.cause;
      if (error instanceof GaveUp && error.intent === null && error.last !== undefined) {
        if (error.last.kind === "failure") throw error.last.cause;
        return respond({ response: error.last, replayed: false });
      }
      throw error;
    }
  };

  /** Sends the request that the journal has of an intent. Undefined: the journal does not know it. */
  async finish(intent: string): Promise<CallResponse | undefined> {
    const entry = await this.journal.find(intent);
    if (entry === undefined) return undefined;
    return respond(
      await this.#share(intent, entry.fingerprint, async (signal) => {
        this.#unmasked(entry);
        const { origin } = new URL(entry.request.url);
        if (entry.response === undefined && !this.#serves(origin)) throw new ForeignOrigin(intent, origin);
        const started = await this.journal.start(intent, entry.key, keyForm(this.#options.profile));
        if (started === undefined) throw new Forgotten(intent);
        return this.#finish(started, this.#unmasked(started), signal);
      }),
    );
  }

  /**
   * Finishes the intents that a process left open, several at a time, and reports each, in the order in which
   * they were stored. Call it at start.
   */
  async resume(): Promise<Resumed[]> {
    const known = (await this.journal.list()).map(({ intent, url }) => ({ intent, origin: new URL(url).origin }));
    const open = known.filter(({ origin }) => this.#serves(origin));
    const { origins } = this.#options;
    const isClear = origins.length > 0 || this.#headers.length === 0;
    const isUnclear = !isClear && new Set(open.map(({ origin }) => origin)).size > 1;
    const reports: (Resumed | undefined)[] = open.map(() => undefined);
    const waiting = open.entries();
    const work = async (): Promise<void> => {
      for (const [nth, { intent, origin }] of waiting) {
        const error = isUnclear && new ForeignOrigin(intent, origin);
        reports[nth] = error ? { intent, error } : await this.#resumeOne(intent);
      }
    };
    await Promise.all(Array.from({ length: Math.max(this.#options.resumeAtOnce, 1) }, work));
    return reports.filter((report) => report !== undefined);
  }

  /** Undefined: a person made the journal forget it meanwhile. */
  async #resumeOne(intent: string): Promise<Resumed | undefined> {
    try {
      const response = await this.finish(intent);
      return response && { intent, response };
    } catch (error) {
      if (error instanceof Forgotten) return undefined;
      // Whatever is wrong with one, the others go on.
      return { intent, error: error instanceof Error ? error : new Error(String(error)) };
    }
  }

  /** Closes the journal. */
  async close(): Promise<void> {
    await this.journal.close();
  }

  /** Whether this client's credentials are for the server of a stored request. */
  #serves(origin: string): boolean {
    const { origins } = this.#options;
    return origins.length === 0 || origins.includes(origin);
  }

  #check(intent: string, request: StoredRequest): void {
    const { profile, maxRequestBytes } = this.#options;
    const bytes = Buffer.byteLength(intent);
    if (bytes < 1 || bytes > MAX_INTENT_BYTES || intent.includes("\0")) {
      throw new TypeError(`an intent has 1 to ${MAX_INTENT_BYTES} bytes, and none is zero`);
    }
    if (header(request.headers, profile.header) !== undefined) {
      throw new TypeError(`the client sends ${profile.header} itself: remove it`);
    }
    if (request.body.length > maxRequestBytes) {
      throw new TypeError(`a request has at most ${maxRequestBytes} bytes`);
    }
  }

  /** Concurrent calls with one intent share one. It ends when all their signals are aborted. */
  async #share(
    intent: string,
    print: string,
    start: (signal: AbortSignal) => Promise<Final>,
    signal?: AbortSignal,
  ): Promise<Final> {
    let shared = this.#running.get(intent);
    if (shared === undefined) {
      const abort = new AbortController();
      shared = { fingerprint: print, final: start(abort.signal), abort, waiting: 0 };
      this.#running.set(intent, shared);
    }
    if (shared.fingerprint !== print) throw new IntentConflict(intent);
    shared.waiting += 1;
    try {
      return await unlessAborted(shared.final, signal);
    } finally {
      shared.waiting -= 1;
      if (shared.waiting === 0) {
        shared.abort.abort();
        // A later call starts its own.
        this.#running.delete(intent);
      }
    }
  }

  /** The intent into the journal, then the requests, then the response into the journal. */
  async #lead(intent: string, request: StoredRequest, signal: AbortSignal): Promise<Final> {
    const { clock, keyLifetimeMs } = this.#options;
    const stored = { ...request, headers: maskHeaders(request.headers, this.#secret) };
    // Durable before the first byte is sent: after a crash the same key is used again.
    const form = keyForm(this.#options.profile);
    const entry = await this.journal.intend(intent, stored, keyLifetimeMs, clock(), form);
    // The journals check it as well.
    if (entry.fingerprint !== fingerprint(request)) throw new IntentConflict(intent);
    return this.#finish(entry, request, signal);
  }

  async #finish(entry: Entry, request: StoredRequest, signal: AbortSignal): Promise<Final> {
    if (entry.response !== undefined) {
      return { response: this.#typed(entry.intent, entry.response), replayed: true };
    }
    return this.#send(request, entry, signal);
  }

  /** The request that the journal has of an intent, for the client to add its credentials. */
  #unmasked(entry: Entry): StoredRequest {
    // Also those that only the client which stored it knew as credentials.
    const masked = entry.request.headers.filter(([, value]) => value === "");
    const own = new Set(this.#headers.map(([name]) => name));
    const missing = masked.map(([name]) => name).filter((name) => !own.has(name));
    // Without its credentials it would be refused, and the refusal would end the intent, although the
    // operation may have happened.
    if (missing.length > 0 && entry.response === undefined) {
      throw new CredentialsMissing(entry.intent, missing);
    }
    const headers = withoutHeaders(entry.request.headers, new Set(masked.map(([name]) => name)));
    return { ...entry.request, headers };
  }

  /** The end of a call, and of its intent if it has one. Undefined: another process may have sent the intent, too. */
  async #end(entry: Entry | undefined, end: Finished, isTooLong: boolean): Promise<Final | undefined> {
    const { response, unlessShared } = end;
    if (entry === undefined) {
      if (isTooLong) throw new ResponseNotStored(null, response);
      return { response, replayed: false };
    }
    const { status, headers, body } = response;
    const isShort = body.length <= this.#options.maxResponseBytes;
    const kept = { status, headers, body: isShort && !isTooLong ? body : undefined };
    const { intent, key } = entry;
    const stored = await this.journal.finish(intent, key, kept, this.#options.clock(), unlessShared);
    if (stored === undefined) return undefined;
    return { response: this.#typed(intent, isShort ? stored : response), replayed: false };
  }

  /** Sends a request until an answer ends the call. Without an entry it has no intent. */
  async #send(request: StoredRequest, entry?: Entry, signal?: AbortSignal): Promise<Final> {
    const { clock, random, sleep, deadlineMs, attemptTimeoutMs } = this.#options;
    const profile = withKeyForm(this.#options.profile, entry?.keyForm);
    const intent = entry?.intent ?? null;
    let note: Note = entry?.note ?? { isUnknown: false };
    const [callEndsMs, keyEndsMs] = [clock() + deadlineMs, entry?.expiresMs ?? Infinity];
    const isSent = entry?.isSent ?? false;
    const attempts = new Attempts(profile, intent, request.url, callEndsMs, keyEndsMs, note, isSent);
    const hasKey = entry !== undefined || header(request.headers, profile.header) !== undefined;
    const isRetried = hasKey || request.method === "GET";
    for (;;) {
      // Also after each delay and poll: the machine may have slept meanwhile.
      const nowMs = clock();
      attempts.checkDeadline(nowMs);
      const timeoutMs = Math.min(attemptTimeoutMs, attempts.deadlineMs - nowMs);
      const message = this.#message(profile, request, entry, attempts.statusUrl);
      const received = await exchange(this.#options.fetch, message, timeoutMs, signal);
      signal?.throwIfAborted();
      const isTooLong = received.kind === "too_long";
      // Without a body, its status and headers decide.
      const answer: Answer = isTooLong ? { ...received, kind: "response", body: new Uint8Array() } : received;
      if (!isRetried) {
        if (answer.kind === "failure") throw new Failed(answer);
        if (isTooLong) throw new ResponseNotStored(intent, answer);
        return { response: answer, replayed: false };
      }
      let step = attempts.advance(answer, clock(), random(), this.#quota);
      while (step.kind === "finished") {
        const final = await this.#end(entry, step, isTooLong);
        if (final !== undefined) {
          attempts.giveBack(this.#quota);
          return final;
        }
        // Another process found the intent meanwhile: its request may have been the first.
        attempts.isRepeated = true;
        step = attempts.advance(answer, clock(), random(), this.#quota);
      }
      if (entry !== undefined && !isSameNote(attempts.note, note)) {
        note = attempts.note;
        await this.journal.note(entry.intent, entry.key, note);
      }
      if (step.kind === "ended") throw step.error;
      if (step.delayMs !== undefined) await sleep(step.delayMs, signal);
      signal?.throwIfAborted();
    }
  }

  #message(
    profile: Profile,
    request: StoredRequest,
    entry: Entry | undefined,
    statusUrl: string | undefined,
  ): StoredRequest {
    const own = new Set(this.#headers.map(([name]) => name));
    const headers = [...withoutHeaders(request.headers, own), ...this.#headers];
    if (statusUrl !== undefined) {
      const kept = withoutHeaders(headers, new Set([profile.header, ...BODY_HEADERS]));
      return { method: "GET", url: statusUrl, headers: kept, body: new Uint8Array() };
    }
    if (entry === undefined) return { ...request, headers };
    const kept = withoutHeaders(headers, new Set([profile.header]));
    return { ...request, headers: [...kept, [profile.header, keyValue(profile, entry.key)]] };
  }

  /** The response that ended an intent, or the error that it stands for. */
  #typed(intent: string, stored: StoredResponse): CompleteResponse {
    const { status, headers, body = new Uint8Array() } = stored;
    const response: CompleteResponse = { kind: "response", status, headers, body };
    if (stored.body === undefined) throw new ResponseNotStored(intent, response);
    const { verdict } = decide(this.#options.profile, response);
    if (verdict === "key_reused") throw new KeyReused(intent, response);
    if (verdict === "key_expired") throw new KeyExpired(intent, response);
    if (verdict === "response_not_stored") throw new ResponseNotStored(intent, response);
    return response;
  }
}

/** The result, or why its signal was aborted, whichever is first. */
async function unlessAborted<T>(result: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return result;
  let stop = (): void => undefined;
  const aborted = new Promise<never>((_, failed) => {
    stop = () => failed(signal.reason);
    signal.addEventListener("abort", stop);
  });
  try {
    return await Promise.race([result, aborted]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

function isSameNote(one: Note, other: Note): boolean {
  return (
    one.expiresMs === other.expiresMs &&
    one.isUnknown === other.isUnknown &&
    one.operationId === other.operationId
  );
}

function respond(final: Final): CallResponse {
  return new CallResponse(final.response, final.replayed);
}
