// How a call can end without a final response. Each error says whether it may have been executed.

import { describe, type Answer, type CompleteResponse, type Failure } from "./messages.js";

/** A call without a final response. */
export class CallError extends Error {
  constructor(
    readonly intent: string | null,
    message: string,
    options?: ErrorOptions,
  ) {
    super(intent === null ? message : `intent "${intent}": ${message}`, options);
    this.name = new.target.name;
  }
}

/** The intent is known with another request. Nothing was sent. */
export class IntentConflict extends CallError {
  constructor(intent: string | null) {
    super(
      intent,
      "known with another request (method, URL, content type or body differ); nothing was sent: " +
        "use a new intent for a new operation",
    );
  }
}

/** The server has no response for this key. A new key could execute a second time. */
export class Rejected extends CallError {
  constructor(
    intent: string | null,
    message: string,
    /** What the server sent; undefined where only the journal lacks the response. */
    readonly response?: CompleteResponse,
  ) {
    super(intent, message);
  }
}

/** The server knows the key with another request. This request was not executed now. */
export class KeyReused extends Rejected {
  constructor(intent: string | null, response?: CompleteResponse) {
    super(intent, "the server knows the key with another request", response);
  }
}

/** It was executed too long ago for the server to repeat its response. Look the result up. */
export class KeyExpired extends Rejected {
  constructor(intent: string | null, response?: CompleteResponse) {
    super(intent, "the server knows the key, but no longer the response; look it up", response);
  }
}

/**
 * The final response is not stored: the server says so of an operation that it executed, or it was too long. Then
 * `response` has its status and headers, and it was executed if that is a success.
 */
export class ResponseNotStored extends Rejected {
  constructor(intent: string | null, response: CompleteResponse) {
    const { status, body } = response;
    let message = "it was executed, but the server does not have its response any more; look it up";
    if (status >= 200 && status < 300) {
      message = `it was executed (status ${status}), but its response was too long to be stored; look it up`;
    } else if (body.length === 0) {
      message = `the final response (status ${status}) was too long to be stored`;
    }
    super(intent, message, response);
  }
}

/** It may have been executed, and the server does not know either. The intent stays open. */
export class OutcomeUnknown extends CallError {
  constructor(
    intent: string | null,
    readonly operationId: string | undefined,
  ) {
    const operation = operationId === undefined ? "" : ` (operation ${operationId})`;
    super(
      intent,
      `the outcome is unknown${operation}; call again later with the same intent, never with another one`,
    );
  }
}

/** The call ended before a final response. It may have been executed. The intent stays open. */
export class GaveUp extends CallError {
  constructor(
    intent: string | null,
    /**
     * `refused`: the last response refused the request without regard to its key, such as a 401, and an
     * earlier request may have been executed. `key_lifetime`: nothing is sent with the key any more.
     */
    readonly reason: "deadline" | "key_lifetime" | "quota" | "refused",
    readonly last: Answer | undefined,
  ) {
    const what = last === undefined ? "nothing was sent" : describe(last);
    super(intent, `gave up (${reason}; ${what}); ${ADVICE[reason]}`);
  }
}

const ADVICE: Readonly<Record<GaveUp["reason"], string>> = {
  deadline: "call again later with the same intent",
  key_lifetime: "the lifetime of its key is over: look the outcome up, then forget the intent",
  quota: "call again later with the same intent",
  refused: "it may have happened before: remove the reason, and call again with the same intent",
};

/** The journal does not keep the credentials of this request. Nothing was sent; the intent stays open. */
export class CredentialsMissing extends CallError {
  constructor(intent: string | null, names: readonly string[]) {
    super(
      intent,
      `the journal does not keep ${names.join(", ")}: give it to the client itself, so that the intent can ` +
        "be resumed, or call it again with its request",
    );
  }
}

/** The client is not set up for the server of this intent. Nothing was sent; the intent stays open. */
export class ForeignOrigin extends CallError {
  constructor(intent: string | null, origin: string) {
    super(
      intent,
      `intents of several APIs share the journal, and this client is not set up for ${origin}: name its ` +
        "origins in the options; nothing was sent",
    );
  }
}

/** A person made the journal forget the intent meanwhile. Nothing was sent. */
export class Forgotten extends CallError {
  constructor(intent: string | null) {
    super(intent, "forgotten meanwhile; nothing was sent");
  }
}

/** A request without a key got no response, and is not retried. It may have been executed. */
export class Failed extends CallError {
  constructor(failure: Failure) {
    super(null, `no response, and without a key there is no retry: ${describe(failure)}`, {
      cause: failure.cause,
    });
  }
}

/** The journal failed. If it could not store the intent, nothing was sent. */
export class JournalError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** As many intents are open as may be. Nothing was sent. */
export class JournalFull extends JournalError {}
