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
 */
export type Verdict =
  | "final"
  | "key_reused"
  | "key_expired"
  | "response_not_stored"
  | "unknown"
  | "wait"
  | "failure"
  | "over";

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
]);

/** What the answer to a request means. The first rule that matches decides. */
export function decide(profile: Profile, answer: Answer): Decision {
  if (answer.kind === "failure") return { verdict: "failure" };
  const { code, retryable, isMisuse } = readRefusal(profile, answer);
  const coded = CODED.get(code);
  if (coded === "unknown") return { verdict: coded, operationId: operationId(answer) };
  if (coded !== undefined) return { verdict: coded };
  if (isMisuse) return { verdict: "key_reused" };
  const { status, headers } = answer;
  const shouldRetry = header(headers, "stripe-should-retry");
  if (shouldRetry === "false" || retryable === false) return { verdict: "final" };
  if (shouldRetry === "true" || retryable === true) {
    return { verdict: [408, 409, 425, 429].includes(status) ? "wait" : "failure" };
  }
  if (profile.replayedIsFinal && header(headers, "idempotent-replayed") === "true") {
    return { verdict: "final" };
  }
  if (status === 202 && isInProgress(answer)) {
    return { verdict: "wait", statusResource: header(headers, "location") };
  }
  if (status === 409 && (profile.conflictWaits || header(headers, "retry-after") !== undefined)) {
    return { verdict: "wait" };
  }
  if (profile.waits.has(status)) return { verdict: "wait" };
  return { verdict: profile.fails(status) ? "failure" : "final" };
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
  /** Stripe's word for a key with another request. */
  readonly isMisuse?: boolean;
}

function readRefusal(profile: Profile, response: CompleteResponse): Refusal {
  // A success of the application is none, whatever its body.
  if (response.status < 400) return {};
  if (profile.hasProblems) {
    if (mediaType(response) !== "application/problem+json") return {};
    const { code, retryable } = jsonObject(response);
    return { code: text(code), retryable: typeof retryable === "boolean" ? retryable : undefined };
  }
  const { error } = jsonObject(response);
  if (!isObject(error)) return {};
  const isMisuse = response.status === 400 && error["type"] === "idempotency_error";
  return { code: text(error["code"]), isMisuse };
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
