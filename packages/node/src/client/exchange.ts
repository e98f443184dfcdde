// One attempt over `fetch`.

import type { Answer, CompleteResponse, Headers, StoredRequest } from "./messages.js";

/** The longest response that is read at all. A longer one counts as not stored. */
const MAX_READ_BYTES = 64 * 1024 * 1024;
/** They describe the bytes on the wire; the body is stored decoded. */
const WIRE_HEADERS = new Set(["connection", "content-encoding", "content-length", "transfer-encoding"]);
/** These statuses have no body, and `Response` accepts none. */
const BODILESS = new Set([101, 204, 205, 304]);

/** The codes of errors before there is a connection. */
const NOT_CONNECTED = new Set([
  "EAI_AGAIN",
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** A response that is too long to be read. */
export interface TooLong {
  readonly kind: "too_long";
  readonly status: number;
  readonly headers: Headers;
}

/** A final response. */
export class CallResponse extends Response {
  constructor(
    response: CompleteResponse,
    /** Whether it was stored by an earlier call, so that nothing was sent. */
    readonly replayedFromJournal: boolean,
  ) {
    const body = BODILESS.has(response.status) ? null : Uint8Array.from(response.body);
    super(body, { status: response.status, headers: response.headers.map(([name, value]) => [name, value]) });
  }
}

/** Sends a request once, and reads the complete response. Throws where the request itself is invalid. */
export async function exchange(
  send: typeof fetch,
  request: StoredRequest,
  timeoutMs: number,
  signal?: AbortSignal,
): Promise<Answer | TooLong> {
  const timeout = AbortSignal.timeout(timeoutMs);
  const prepared = new Request(request.url, {
    method: request.method,
    headers: request.headers.map(([name, value]) => [name, value]),
    body: request.body.length > 0 ? Uint8Array.from(request.body) : null,
    // A redirect is a final response.
    redirect: "manual",
    signal: signal === undefined ? timeout : AbortSignal.any([timeout, signal]),
  });
  try {
    const response = await send(prepared);
    const headers = pairs(response.headers).filter(([name]) => !WIRE_HEADERS.has(name));
    const { status } = response;
    // `Response` accepts no other, so it could not be returned: a broken answer.
    if (status < 200 || status > 599) {
      await response.body?.cancel();
      return { kind: "failure", cause: new Error(`status ${status}`), isSent: true };
    }
    const body = await read(response);
    if (body === undefined) return { kind: "too_long", status, headers };
    return { kind: "response", status, headers, body };
  } catch (cause) {
    return { kind: "failure", cause, isSent: !isNotConnected(cause) };
  }
}

/** Without a connection the server did not receive the request. */
function isNotConnected(error: unknown): boolean {
  const cause = error instanceof Error ? error.cause : undefined;
  const causes = cause instanceof AggregateError ? cause.errors : [cause];
  return causes.every((one) => one instanceof Error && "code" in one && NOT_CONNECTED.has(String(one.code)));
}

/** A request as `fetch` takes it, with all its bytes. */
export async function readRequest(
  input: string | URL | Request,
  init?: RequestInit,
): Promise<StoredRequest> {
  const request = new Request(input, init);
  if (!/^https?:$/.test(new URL(request.url).protocol)) {
    throw new TypeError(`${request.url} is neither http:// nor https://`);
  }
  const body = new Uint8Array(await request.arrayBuffer());
  return { method: request.method, url: request.url, headers: pairs(request.headers), body };
}

function pairs(headers: globalThis.Headers): Headers {
  // It yields lower case, and each `Set-Cookie` by itself.
  return [...headers.entries()];
}

/** The body, or undefined where it is too long. */
async function read(response: Response): Promise<Uint8Array | undefined> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  for (;;) {
    const chunk = await reader?.read();
    if (chunk === undefined || chunk.done) return Buffer.concat(chunks);
    size += chunk.value.length;
    if (size > MAX_READ_BYTES) {
      await reader?.cancel();
      return undefined;
    }
    chunks.push(chunk.value);
  }
}
