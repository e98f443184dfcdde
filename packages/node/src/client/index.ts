/**
 * A client for requests that must take effect once. It stores the idempotency key before it sends, sends
 * the same key on every attempt, and returns the stored response when the same intent is called again, in
 * whatever process.
 *
 * @module
 */

export { DEFAULT_QUOTA, type Note, type QuotaOptions } from "./attempts.js";
export {
  Client,
  SECRET_HEADERS,
  type ClientOptions,
  type IntentInit,
  type Resumed,
} from "./client.js";
export { decide, decidePoll, type Decision, type Verdict } from "./decision.js";
export {
  CallError,
  CredentialsMissing,
  Failed,
  ForeignOrigin,
  Forgotten,
  GaveUp,
  IntentConflict,
  JournalError,
  JournalFull,
  KeyExpired,
  KeyReused,
  OutcomeUnknown,
  Rejected,
  ResponseNotStored,
} from "./errors.js";
export { CallResponse } from "./exchange.js";
export { FileJournal } from "./file_journal.js";
export {
  MemoryJournal,
  type Entry,
  type Journal,
  type JournalOptions,
  type OpenIntent,
  type StoredResponse,
} from "./journal.js";
export type { Answer, CompleteResponse, Failure, Headers, StoredRequest } from "./messages.js";
export { IETF, STRIPE, type Backoff, type Profile, type RetryAfter } from "./profile.js";
