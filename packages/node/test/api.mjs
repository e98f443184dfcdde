// An API that executes once for each key, in the way of Semel, and fails on request.

import { createServer } from "node:http";

export class Api {
  /** The key, the path and the headers of each request. */
  requests = [];
  payments = new Map();
  /** Called with the number of the request, from 1: a status, or "drop" to execute and answer nothing. */
  fault = () => undefined;
  onRequest = async () => undefined;
  #server;

  static async start() {
    const api = new Api();
    api.#server = createServer((request, response) => void api.#serve(request, response));
    await new Promise((done) => api.#server.listen(0, "127.0.0.1", done));
    api.url = `http://127.0.0.1:${api.#server.address().port}`;
    return api;
  }

  close() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  get keys() {
    return new Set(this.requests.map(({ key }) => key));
  }

  async #serve(request, response) {
    try {
      for await (const _ of request);
    } catch {
      // Its client was killed while it sent.
      return;
    }
    const key = request.headers["idempotency-key"];
    await this.onRequest(key);
    this.requests.push({ key, path: request.url, headers: request.headers });
    const fault = this.fault(this.requests.length);
    let status = 201;
    let answer = { status: fault };
    if (typeof fault === "number") {
      status = fault;
    } else {
      const known = key === undefined ? undefined : this.payments.get(key);
      answer = known ?? { id: this.payments.size + 1 };
      this.payments.set(key ?? Symbol("no key"), answer);
    }
    if (fault === "drop") {
      request.socket.destroy();
      return;
    }
    response.writeHead(status, { "content-type": "application/json" });
    response.end(JSON.stringify(answer));
  }
}
