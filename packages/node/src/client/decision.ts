// The decision table: what a response means for the request that it answers.
//
// Pure functions, without I/O and time. The table in prose is in `packages/scenarios/README.md`, and the
// clients in all languages run the same scenarios.

import { header, isObject, jsonObject, mediaType, type Answer, type CompleteResponse } from "./messages.js";
import type { Profile } from "./profile.js";

/**
 * - `final`, `key_reused`, `key_expired`, `response_not_stored` end the intent: the last three because the
 *   server has no response for this key, and a new key could execute again.
 * - `unknown`: it may or may not have been executed. Ask slowly, with the same key.
 * - `wait`: the server asks to come back. Costs no quota.
 * - `failure`: may pass. A retry costs quota.
 * - `over`: of a status resource; the request is sent again at once.
 * - `refused` before its key was looked at, and an earlier request with it may have been executed: the call
 *   ends, and the intent stays open.
 * - `unprotected`: it may have been executed by a server that does not know its key, so that a retry would
 *   execute again. Nothing is sent with it any more.
 */
export type Verdict =
  | "final"
  | "key_reused"
  | "key_expired"
  | "response_not_stored"
  | "unknown"
  | "wait"
  | "failure"
  | "over"
  | "refused"
  | "unprotected";

export interface Decision {
  readonly verdict: Verdict;
  /** The server's id of an operation whose outcome is unknown. */
  readonly operationId?: string | undefined;
  /** `Location` of the operation's status. */
  readonly statusResource?: string | undefined;
}

const STATUS_PATH = "/.semel/operations/";

const CODED: ReadonlyMap<string | undefined, Verdict> = new Map<string, Verdict>([
  ["idempotency_key_reused", "key_reused"],
  ["idempotency_key_expired", "key_expired"],
  ["idempotency_response_not_stored", "response_not_stored"],
  ["idempotency_outcome_unknown", "unknown"],
  ["upstream_failed", "unprotected"],
]);

const UNRELATED: readonly number[] = [401, 403, 404, 405, 407, 408, 413, 421, 425, 429, 431, 451];
/** Codes of Semel's refusals of a request as it is. */
const UNRELATED_CODES: readonly string[] = [
  "idempotency_key_malformed",
  "idempotency_key_missing",
  "path_ambiguous",
  "request_invalid",
  "request_malformed",
];

/**
 * Whether a rejection says nothing of an earlier request with the key: a proxy, a gateway, a limit or a check of
 * credentials gives it before the operation is looked up. Any other comes from the server that knows the key.
 */
function isUnrelated(status: number, code: string | undefined): boolean {
  const isRedirect = status >= 300 && status < 400;
  return isRedirect || status >= 500 || UNRELATED.includes(status) || UNRELATED_CODES.includes(code ?? "");
}

/**
 * What the answer to a request means. The first rule that matches decides. `isRepeated`: an earlier request
 * with this key may have reached the server.
 */
export function decide(profile: Profile, answer: Answer, isRepeated = false): Decision {
  if (answer.kind === "failure") return { verdict: "failure" };
  const { code, retryable, isMisuse } = readRefusal(profile, answer);
  if (code === "idempotency_key_in_progress") return { verdict: "wait" };
  const coded = CODED.get(code);
  if (coded === "unknown") return { verdict: coded, operationId: operationId(answer) };
  if (coded !== undefined) return { verdict: coded };
  if (isMisuse) return { verdict: "key_reused" };
  const { status, headers } = answer;
  // `fetch` joins repeated headers: the first counts.
  const isReplayed = /^true *(,|$)/.test(header(headers, "idempotent-replayed") ?? "");
  const isRefused = isRepeated && !isReplayed && isUnrelated(status, code);
  const last: Decision = { verdict: isRefused ? "refused" : "final" };
  const shouldRetry = header(headers, "stripe-should-retry");
  if (shouldRetry === "false" || retryable === false) return last;
  if (shouldRetry === "true" || retryable === true) {
    return { verdict: [408, 409, 425, 429].includes(status) ? "wait" : "failure" };
  }
  if (profile.replayedIsFinal && isReplayed) return { verdict: "final" };
  if (status === 202 && isInProgress(answer)) {
    return { verdict: "wait", statusResource: header(headers, "location") };
  }
  // The IETF draft has 409 for a request that is outstanding, without a code or `Retry-After`: after an
  // earlier request it is that.
  const isInConflict = profile.conflictWaits || isRepeated || header(headers, "retry-after") !== undefined;
  if (status === 409 && isInConflict) return { verdict: "wait" };
  if (profile.waits.has(status)) return { verdict: "wait" };
  return profile.fails(status) ? { verdict: "failure" } : last;
}

/** What the answer of a status resource means. */
export function decidePoll(answer: Answer): Decision {
  if (answer.kind === "failure" || answer.status !== 200) return { verdict: "failure" };
  const { status } = jsonObject(answer);
  if (status === "in_progress") return { verdict: "wait" };
  if (status === "unknown") return { verdict: "unknown", operationId: operationId(answer) };
  return { verdict: typeof status === "string" ? "over" : "failure" };
}

export function isEnd(verdict: Verdict): boolean {
  return ["final", "key_reused", "key_expired", "response_not_stored"].includes(verdict);
}

interface Refusal {
  readonly code?: string | undefined;
  readonly retryable?: boolean | undefined;
  /** Stripe's error for a key with another request. */
  readonly isMisuse?: boolean;
}

function readRefusal(profile: Profile, response: CompleteResponse): Refusal {
  // A success of the application is none, whatever its body.
  if (response.status < 400) return {};
  const body = jsonObject(response);
  const error = isObject(body["error"]) ? body["error"] : {};
  const isMisuse =
    !profile.hasProblems && response.status === 400 && error["type"] === "idempotency_error";
  // In both forms whatever the profile: with the wrong one, an unknown outcome must not look final.
  if (mediaType(response) !== "application/problem+json") return { code: text(error["code"]), isMisuse };
  // The end of `type` is the code, too: it is the address of its page.
  const code = text(body["code"]) ?? text(body["type"])?.split("/").at(-1) ?? text(error["code"]);
  const { retryable } = body;
  const isRead = profile.hasProblems && typeof retryable === "boolean";
  return { code, retryable: isRead ? retryable : undefined, isMisuse };
}

/** Whether a 202 is Semel's, and not the application's own. */
function isInProgress(response: CompleteResponse): boolean {
  const body = jsonObject(response);
  return body["status"] === "in_progress" && typeof body["operation_id"] === "string";
}

function operationId(response: CompleteResponse): string | undefined {
  const id = text(jsonObject(response)["operation_id"]);
  if (id !== undefined) return id;
  const location = header(response.headers, "location") ?? "";
  const at = location.indexOf(STATUS_PATH);
  return (at < 0 ? "" : location.slice(at + STATUS_PATH.length)) || undefined;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}
