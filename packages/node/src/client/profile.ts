// What differs between providers: the form of the key and of refusals, and the delays.

import { header, type CompleteResponse } from "./messages.js";

/** Exponential delays with jitter. */
export interface Backoff {
  /** The upper bounds of the first delay and of all delays. */
  readonly baseMs: number;
  readonly capMs: number;
  /** The part of a delay that is not random: 0 is full jitter. */
  readonly fixed: number;
  /** No delay is shorter. */
  readonly floorMs: number;
}

/** How `Retry-After` is read. */
export interface RetryAfter {
  readonly longestMs: number;
  /** Whether a date is read too, and a longer delay is shortened; else both are ignored. */
  readonly isLenient: boolean;
}

/** The dialect of a provider. For another one, spread `IETF` or `STRIPE` and change members. */
export interface Profile {
  readonly name: string;
  /** The header with the key, in lower case. */
  readonly header: string;
  /** Whether the key is sent as a String of RFC 9651, `"…"`. */
  readonly quoted: boolean;
  /** Whether refusals are problem bodies (`code`, `retryable`), or have a member `error`. */
  readonly hasProblems: boolean;
  readonly retryAfter: RetryAfter;
  /** Delays after failures, and while another request with the key is in progress. */
  readonly backoff: Backoff;
  /** Delays while the outcome is unknown: reconciling takes seconds to minutes. */
  readonly slow: Backoff;
  /** Statuses that mean: later, and nothing was executed. */
  readonly waits: ReadonlySet<number>;
  /** Whether a 409 means that a request with this key is in progress even without `Retry-After`. */
  readonly conflictWaits: boolean;
  /** Whether a status is a failure that may pass. */
  readonly fails: (status: number) => boolean;
  /** Whether `Idempotent-Replayed: true` is final whatever the status: the server stored it. */
  readonly replayedIsFinal: boolean;
}

export const IETF: Profile = {
  name: "ietf",
  header: "idempotency-key",
  quoted: true,
  hasProblems: true,
  // Semel's dead letters ask for five minutes, the longest delay that a well-behaved server has.
  retryAfter: { longestMs: 300_000, isLenient: true },
  backoff: { baseMs: 500, capMs: 8_000, fixed: 0, floorMs: 0 },
  slow: { baseMs: 5_000, capMs: 60_000, fixed: 0, floorMs: 0 },
  waits: new Set([408, 425, 429]),
  conflictWaits: false,
  // Also those of proxies, such as 520 to 530. A server that implements no such method or version never will.
  fails: (status) => status >= 500 && ![501, 505].includes(status),
  replayedIsFinal: true,
};

/**
 * The retry rules of Stripe's SDKs. Stripe sends `Stripe-Should-Retry: true` with the other statuses
 * that its clients should retry.
 */
export const STRIPE: Profile = {
  ...IETF,
  name: "stripe",
  quoted: false,
  hasProblems: false,
  retryAfter: { longestMs: 60_000, isLenient: false },
  backoff: { baseMs: 500, capMs: 5_000, fixed: 0.5, floorMs: 500 },
  waits: new Set(),
  conflictWaits: true,
  fails: (status) => status >= 500,
  replayedIsFinal: false,
};

/** Delay number `nth` from 0; `random` is between 0 and 1. */
export function backoffDelay(backoff: Backoff, nth: number, random: number): number {
  const bound = Math.min(backoff.baseMs * 2 ** Math.min(nth, 30), backoff.capMs);
  const share = backoff.fixed + (1 - backoff.fixed) * Math.min(Math.max(random, 0), 1);
  return Math.max(Math.floor(bound * share), backoff.floorMs);
}

/** What a response asks for; 0 without a readable header. */
export function retryAfterDelay(rule: RetryAfter, response: CompleteResponse, nowMs: number): number {
  // `fetch` joins repeated headers: the first counts. A date has a comma itself.
  const value = (header(response.headers, "retry-after") ?? "").replace(/^([0-9]+) *,.*$/s, "$1");
  let asked: number;
  if (/^[0-9]+$/.test(value)) {
    asked = Number(value) * 1000;
  } else if (rule.isLenient) {
    asked = Math.max((parseDate(value) ?? nowMs) - nowMs, 0);
  } else {
    return 0;
  }
  if (asked > rule.longestMs) return rule.isLenient ? rule.longestMs : 0;
  return asked;
}

/** An HTTP date in milliseconds since the epoch. */
export function parseDate(value: string): number | undefined {
  for (const form of HTTP_DATES) {
    const { d, m, y, t } = form.exec(value)?.groups ?? {};
    if (d === undefined || m === undefined || y === undefined || t === undefined) continue;
    const year = y.length > 2 ? y : `${Number(y) < 70 ? 20 : 19}${y}`;
    const time = Date.parse(`${d.trim()} ${m} ${year} ${t} GMT`);
    if (!Number.isNaN(time)) return time;
  }
  return undefined;
}

/** The form of RFC 9110, and the two obsolete ones that a recipient has to accept. */
const HTTP_DATES = [
  /^[A-Z][a-z]{2}, (?<d>\d{2}) (?<m>[A-Z][a-z]{2}) (?<y>\d{4}) (?<t>\d{2}:\d{2}:\d{2}) GMT$/,
  /^[A-Z][a-z]{5,8}, (?<d>\d{2})-(?<m>[A-Z][a-z]{2})-(?<y>\d{2}) (?<t>\d{2}:\d{2}:\d{2}) GMT$/,
  /^[A-Z][a-z]{2} (?<m>[A-Z][a-z]{2}) (?<d>[ \d]\d) (?<t>\d{2}:\d{2}:\d{2}) (?<y>\d{4})$/,
];

export function keyValue(profile: Profile, key: string): string {
  return profile.quoted ? `"${key}"` : key;
}

/** The header with the key, as the journals store it. */
export function keyForm(profile: Profile): string {
  return `${profile.header}: ${keyValue(profile, "{key}")}`;
}

/** With the form in which a key was first sent: in another one it would be another key. */
export function withKeyForm(profile: Profile, form: string | undefined): Profile {
  if (form === undefined) return profile;
  const [header = "", value = ""] = form.split(": ");
  return { ...profile, header, quoted: value.startsWith('"') };
}
