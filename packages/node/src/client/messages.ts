// Requests and responses as the core sees them: bytes and pairs.

import { createHash } from "node:crypto";

/** Names in lower case; a character for each byte of a value (ISO 8859-1). */
export type Headers = readonly (readonly [name: string, value: string])[];

/** A request with a complete body, so that every attempt sends the same bytes. */
export interface StoredRequest {
  readonly method: string;
  /** As the URL Standard serialises it. */
  readonly url: string;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** A complete response. The body is decoded: without its content encoding. */
export interface CompleteResponse {
  readonly kind: "response";
  readonly status: number;
  readonly headers: Headers;
  readonly body: Uint8Array;
}

/** No complete response: the connection failed, timed out, or ended within the response. */
export interface Failure {
  readonly kind: "failure";
  readonly cause: unknown;
  /** False: there was no connection, so the server did not receive the request. */
  readonly isSent: boolean;
}

export type Answer = CompleteResponse | Failure;

/** Another version is another fingerprint. The clients in all languages compute the same. */
const FINGERPRINT = "semel-intent-1";

/** The first header of this name. */
export function header(headers: Headers, name: string): string | undefined {
  return headers.find(([found]) => found === name)?.[1].trim();
}

export function withoutHeaders(headers: Headers, names: ReadonlySet<string>): Headers {
  return headers.filter(([name]) => !names.has(name));
}

/** Headers as they are stored: credentials without their values. Without them it is another request. */
export function maskHeaders(headers: Headers, secret: ReadonlySet<string>): Headers {
  // The content type identifies the request, and is no credential.
  const isSecret = (name: string): boolean => name !== "content-type" && secret.has(name);
  return headers.map(([name, value]) => [name, isSecret(name) ? "" : value] as const);
}

/** What makes it the same request under an intent. Other headers may change: credentials are rotated. */
export function fingerprint(request: StoredRequest): string {
  const contentType = request.headers.find(([name]) => name === "content-type")?.[1] ?? "";
  const fields = [
    Buffer.from(FINGERPRINT),
    Buffer.from(request.method),
    Buffer.from(request.url),
    Buffer.from(contentType, "latin1"),
    request.body,
  ];
  const hash = createHash("sha256");
  for (const field of fields) {
    // Each after its length: two requests cannot yield the same bytes.
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(field.length));
    hash.update(length).update(field);
  }
  return hash.digest("hex");
}

export function mediaType(response: CompleteResponse): string {
  const contentType = header(response.headers, "content-type") ?? "";
  return (contentType.split(";")[0] ?? "").trim().toLowerCase();
}

/** The body of a JSON response; an empty object where it is none. */
export function jsonObject(response: CompleteResponse): Record<string, unknown> {
  const type = mediaType(response);
  if (type !== "application/json" && !type.endsWith("+json")) return {};
  try {
    const value: unknown = JSON.parse(Buffer.from(response.body).toString("utf8"));
    return isObject(value) ? value : {};
  } catch {
    return {};
  }
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** An error with its cause: `fetch` alone reports only that it failed. */
export function describe(answer: Answer): string {
  if (answer.kind === "response") return `status ${answer.status}`;
  const { cause } = answer;
  if (!(cause instanceof Error)) return String(cause);
  const reason = cause.cause instanceof Error ? `: ${cause.cause.message}` : "";
  return `${cause.name}: ${cause.message}${reason}`;
}
