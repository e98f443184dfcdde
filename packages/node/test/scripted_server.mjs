// A server that expects certain requests, and responds as its script says: on real sockets.

import { createServer } from "node:net";

/** Serves one exchange after another, each on a connection of its own. */
export class ScriptedServer {
  problems = [];
  /** What happens while the server has a request. */
  meanwhile = async () => {};
  keys = new Map();
  #profile;
  #now;
  #exchanges = [];
  #next = 0;
  #port = 0;
  #listener;
  #sockets = new Set();

  constructor(profile, now) {
    this.#profile = profile;
    this.#now = now;
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  async start() {
    await this.#listen();
  }

  /** Sets the script of a step. */
  async begin(exchanges) {
    this.#exchanges = exchanges;
    this.#next = 0;
    await this.#openOrClose();
  }

  /** A refused connection is noticed by the delay after it. */
  async onSleep() {
    if (!this.#isRefused()) return;
    this.#next += 1;
    await this.#openOrClose();
  }

  /** Checks that the script was used up. */
  end() {
    if (this.#isRefused()) this.#next += 1;
    const missing = this.#exchanges.slice(this.#next);
    if (missing.length > 0) {
      this.problems.push(`requests that did not come: ${JSON.stringify(missing)}`);
    }
    for (const socket of this.#sockets) socket.destroy();
  }

  async close() {
    for (const socket of this.#sockets) socket.destroy();
    await this.#stopListening();
  }

  #isRefused() {
    return this.#exchanges[this.#next]?.respond.refuse !== undefined;
  }

  async #openOrClose() {
    if (this.#isRefused()) await this.#stopListening();
    else if (this.#listener === undefined) await this.#listen();
  }

  async #listen() {
    const listener = createServer((socket) => this.#accept(socket));
    await new Promise((done, failed) => {
      listener.once("error", failed);
      listener.listen(this.#port, "127.0.0.1", done);
    });
    this.#port = listener.address().port;
    this.#listener = listener;
  }

  async #stopListening() {
    const listener = this.#listener;
    this.#listener = undefined;
    // Connections that are still open end by themselves.
    listener?.close();
  }

  #accept(socket) {
    this.#sockets.add(socket);
    socket.on("close", () => this.#sockets.delete(socket));
    socket.on("error", () => undefined);
    let data = Buffer.alloc(0);
    socket.on("data", (chunk) => {
      data = Buffer.concat([data, chunk]);
      const request = parse(data);
      if (request === undefined) return;
      socket.removeAllListeners("data");
      socket.resume();
      this.#serve(request, socket).catch((error) => {
        this.problems.push(String(error));
        socket.destroy();
      });
    });
  }

  async #serve(request, socket) {
    const exchange = this.#exchanges[this.#next];
    if (exchange === undefined) {
      this.problems.push(`an unexpected request: ${JSON.stringify(request)}`);
      socket.destroy();
      return;
    }
    this.#check(request, exchange.expect ?? {});
    await this.meanwhile(exchange.respond);
    // Before the response: the client may send the next request at once.
    this.#next += 1;
    await this.#openOrClose();
    const { respond } = exchange;
    if (respond.stall) return;
    if (respond.disconnect === "before_head") {
      socket.destroy();
      return;
    }
    socket.end(this.#render(respond));
  }

  #check(request, expect) {
    for (const name of ["method", "path"]) {
      if (name in expect && request[name] !== expect[name]) {
        this.problems.push(`${name}: expected ${expect[name]}, got ${request[name]}`);
      }
    }
    const body = expectedBody(expect);
    if (body !== undefined && !request.body.equals(body)) {
      this.problems.push(`body: expected ${body}, got ${request.body}`);
    }
    if ("key" in expect) this.#checkKey(expect.key, request.headers.get("idempotency-key"));
  }

  #checkKey(symbol, value) {
    if (symbol === null || value === undefined) {
      if (symbol !== null || value !== undefined) {
        this.problems.push(`key: expected ${symbol}, got ${value}`);
      }
      return;
    }
    let key = value;
    if (this.#profile === "ietf") {
      if (!/^"[^"]+"$/.test(value)) this.problems.push(`key: not an RFC 9651 String: ${value}`);
      key = value.replaceAll('"', "");
    }
    if (!this.keys.has(symbol)) this.keys.set(symbol, key);
    const uses = [...this.keys.values()].filter((known) => known === key).length;
    if (this.keys.get(symbol) !== key || uses > 1) {
      this.problems.push(`key ${symbol}: ${key}, with ${JSON.stringify([...this.keys])}`);
    }
  }

  #render(respond) {
    const body = Buffer.from(respond.body ?? "");
    const status = respond.status ?? 200;
    const length = body.length + (respond.disconnect === "in_body" ? 10 : 0);
    const lines = [`HTTP/1.1 ${status} Scripted`, "connection: close"];
    if (status !== 204) lines.push(`content-length: ${length}`);
    for (const [name, value] of Object.entries(respond.headers ?? {})) {
      lines.push(`${name}: ${this.#dated(value)}`);
    }
    return Buffer.concat([Buffer.from(`${lines.join("\r\n")}\r\n\r\n`), body]);
  }

  #dated(value) {
    return value.replace(/\{\{now([+-]\d+)s\}\}/, (_, seconds) =>
      new Date(this.#now() + Number(seconds) * 1000).toUTCString(),
    );
  }
}

export function expectedBody(message) {
  if (message.body_base64 !== undefined) return Buffer.from(message.body_base64, "base64");
  return message.body === undefined ? undefined : Buffer.from(message.body);
}

/** Undefined until the request is complete. */
function parse(data) {
  const end = data.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const [first, ...lines] = data.subarray(0, end).toString("latin1").split("\r\n");
  const [method, path] = first.split(" ");
  const headers = new Map(
    lines.map((line) => {
      const at = line.indexOf(":");
      return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()];
    }),
  );
  const body = data.subarray(end + 4);
  if (body.length < Number(headers.get("content-length") ?? 0)) return undefined;
  return { method, path, headers, body };
}
