// One call from its first request to its end: which request is next, when, or why there is none.
//
// Without I/O: answers, time and random numbers come in, steps go out.

import { decide, decidePoll, isEnd, type Verdict } from "./decision.js";
import { CallError, GaveUp, OutcomeUnknown } from "./errors.js";
import { header, type Answer, type CompleteResponse } from "./messages.js";
import { backoffDelay, parseDate, retryAfterDelay, type Profile } from "./profile.js";

/** A token bucket that retries take from. First attempts are free. */
export interface QuotaOptions {
  readonly capacity: number;
  readonly cost: number;
  readonly refillPerSecond: number;
}

/** A hundred retries at once, then one in five seconds: the values of the AWS SDKs. */
export const DEFAULT_QUOTA: QuotaOptions = { capacity: 500, cost: 5, refillPerSecond: 1 };

/** A longer address of a status resource is not polled: some libraries refuse longer ones. */
const LONGEST_LOCATION = 8 * 1024;
/** What the first attempt that succeeds returns to the quota. */
const FIRST_SUCCESS = 1;

/** So that clients do not multiply the load of a server that fails. */
export class Quota {
  #tokens: number;
  #refilledMs: number | undefined;

  constructor(readonly options: QuotaOptions) {
    this.#tokens = options.capacity;
  }

  /** Takes the cost of one retry; `false` if there is too little. */
  take(nowMs: number): boolean {
    if (this.#refilledMs !== undefined) {
      // The clock may have been set back.
      const elapsed = Math.max(nowMs - this.#refilledMs, 0);
      this.#add((elapsed * this.options.refillPerSecond) / 1000);
    }
    this.#refilledMs = nowMs;
    if (this.#tokens < this.options.cost) return false;
    this.#tokens -= this.options.cost;
    return true;
  }

  /** A call ended with a response: the server works. */
  giveBack(hasPaid: boolean): void {
    this.#add(hasPaid ? this.options.cost : FIRST_SUCCESS);
  }

  #add(tokens: number): void {
    this.#tokens = Math.min(this.#tokens + tokens, this.options.capacity);
  }
}

/** What a journal remembers of an intent that is not finished. */
export interface Note {
  readonly expiresMs?: number | undefined;
  readonly isUnknown: boolean;
  readonly operationId?: string | undefined;
}

/** The response ends the intent. */
export interface Finished {
  readonly kind: "finished";
  readonly response: CompleteResponse;
  /** Unless another process sent the intent, too: it would say nothing of their request. */
  readonly unlessShared: boolean;
}

export type Step =
  | Finished
  /** The next request, after a delay if there is one. */
  | { readonly kind: "next"; readonly delayMs: number | undefined }
  /** The call ends, and the intent stays open. */
  | { readonly kind: "ended"; readonly error: CallError };

/** The state of a call. */
export class Attempts {
  /** Where the status is asked for, instead of sending the request. */
  statusUrl: string | undefined;
  /** When the last request was sent. */
  #sentMs = 0;
  #delays = 0;
  #hasPaid = false;
  #last: Answer | undefined;

  constructor(
    readonly profile: Profile,
    readonly intent: string | null,
    readonly url: string,
    readonly callEndsMs: number,
    /** The end of the key's lifetime. */
    public keyEndsMs: number,
    public note: Note,
    /** Whether an earlier request with the key may have reached the server, in this call or before it. */
    public isRepeated: boolean,
  ) {}

  /** The end of the call or of the key's lifetime, whichever is earlier. */
  get deadlineMs(): number {
    return Math.min(this.callEndsMs, this.keyEndsMs);
  }

  /** Why nothing may be sent any more, if so. */
  checkDeadline(nowMs: number): void {
    this.#sentMs = nowMs;
    if (nowMs >= this.keyEndsMs) throw this.#giveUp("key_lifetime");
    if (nowMs >= this.callEndsMs) throw this.#giveUp("deadline");
  }

  /** What follows the answer. */
  advance(answer: Answer, nowMs: number, random: number, quota: Quota): Step {
    this.#last = answer;
    this.#readExpiry(answer);
    const { isRepeated } = this;
    this.isRepeated ||= mayBeExecuted(answer);
    const decision =
      this.statusUrl === undefined ? decide(this.profile, answer, isRepeated) : decidePoll(answer);
    const { verdict } = decision;
    // Without an intent there is no key to give up.
    const isEnded = isEnd(verdict) || (verdict === "unprotected" && this.intent === null);
    if (isEnded && answer.kind === "response") {
      const unlessShared = decide(this.profile, answer, true).verdict !== verdict;
      return { kind: "finished", response: answer, unlessShared };
    }
    if (verdict === "refused") return { kind: "ended", error: this.#giveUp("refused") };
    if (verdict === "unprotected") {
      this.note = { ...this.note, isUnknown: true };
      this.#endKey(nowMs);
      return { kind: "ended", error: this.#giveUp("key_lifetime") };
    }
    if (verdict === "over") {
      this.statusUrl = undefined;
      return { kind: "next", delayMs: undefined };
    }
    if (verdict === "unknown") {
      const operationId = decision.operationId ?? this.note.operationId;
      this.note = { ...this.note, isUnknown: true, operationId };
    } else if (verdict === "failure") {
      this.statusUrl = undefined;
    } else if (decision.statusResource !== undefined) {
      this.statusUrl = sameOrigin(this.url, decision.statusResource);
    }
    return this.#pause(verdict, answer, nowMs, random, quota);
  }

  /** The call ended with a response: the server works. */
  giveBack(quota: Quota): void {
    quota.giveBack(this.#hasPaid);
  }

  #pause(verdict: Verdict, answer: Answer, nowMs: number, random: number, quota: Quota): Step {
    const backoff = verdict === "unknown" ? this.profile.slow : this.profile.backoff;
    let delayMs = backoffDelay(backoff, this.#delays, random);
    if (answer.kind === "response") {
      delayMs = Math.max(delayMs, retryAfterDelay(this.profile.retryAfter, answer, nowMs));
    }
    if (nowMs + delayMs >= this.deadlineMs) return { kind: "ended", error: this.#giveUp("deadline") };
    if (verdict === "failure") {
      if (!quota.take(nowMs)) return { kind: "ended", error: this.#giveUp("quota") };
      this.#hasPaid = true;
    }
    this.#delays += 1;
    return { kind: "next", delayMs };
  }

  /** How long the server knows the key. It only shortens what was assumed. */
  #readExpiry(answer: Answer): void {
    if (answer.kind === "failure") return;
    const date = (name: string): number | undefined => {
      const value = header(answer.headers, name) ?? "";
      // `fetch` joins repeated headers: the first counts. A date has a comma itself, and this length.
      return parseDate(value) ?? parseDate(value.slice(0, "Sun, 06 Nov 1994 08:49:37 GMT".length));
    };
    let expiresMs = date("idempotency-key-expires");
    if (expiresMs === undefined) return;
    // The server's clock may be another. Between its two dates is how long it knows the key, from a moment after
    // the request was sent: the response may have taken long.
    const datedMs = date("date");
    if (datedMs !== undefined) expiresMs = this.#sentMs + Math.max(expiresMs - datedMs, 0);
    this.#endKey(expiresMs);
  }

  /** The key is not sent after this time, or an earlier one. */
  #endKey(atMs: number): void {
    this.note = { ...this.note, expiresMs: Math.min(this.note.expiresMs ?? atMs, atMs) };
    this.keyEndsMs = Math.min(this.keyEndsMs, atMs);
  }

  /** A call that ends without an answer about the operation leaves its outcome as it was. */
  #giveUp(reason: GaveUp["reason"]): CallError {
    if (this.note.isUnknown) return new OutcomeUnknown(this.intent, this.note.operationId);
    return new GaveUp(this.intent, reason, this.#last);
  }
}

/**
 * Whether the operation may run, or have run, after this answer that is not final. A server that sends 425 or
 * 429 refused the request, and 408 says that it did not receive it.
 */
function mayBeExecuted(answer: Answer): boolean {
  return answer.kind === "failure" ? answer.isSent : ![408, 425, 429].includes(answer.status);
}

/** `Location` relative to the request, where the caller's credentials may go. */
function sameOrigin(url: string, location: string): string | undefined {
  try {
    const target = new URL(location, url);
    const isPlain = target.username === "" && target.password === "" && target.href.length <= LONGEST_LOCATION;
    return isPlain && target.origin === new URL(url).origin ? target.href : undefined;
  } catch {
    return undefined;
  }
}
