"""Payments in Python behind the gateway: the row and the stored answer commit together.

The gateway sends the operation and the attempt as headers. `semel_complete` writes the answer into
Semel's record inside our transaction: after COMMIT both are there, before it neither is. If this
process dies between COMMIT and the answer, the gateway answers from the record.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg.types.json import Jsonb

DATABASE = os.environ["DATABASE_URL"]

# Fails once, for a demonstration: "before_commit" or "after_commit".
failure = os.environ.pop("FAIL_ONCE", None)


class NotExecuted(Exception):
    """It failed before COMMIT was sent, so nothing happened."""


def pay(operation_id, attempt, order):
    """Commits the payment and its answer in one transaction."""
    try:
        database = psycopg.connect(DATABASE)
    except psycopg.Error as error:
        raise NotExecuted from error
    # Rolls back and closes, whatever is raised inside.
    with database:
        try:
            answer = prepare(database, operation_id, attempt, json.loads(order))
        except Exception as error:
            raise NotExecuted from error
        # If this fails, only the record shows whether it is committed.
        database.commit()
    if failure == "after_commit":
        os._exit(1)
    return answer


def prepare(database, operation_id, attempt, order):
    """Everything but the COMMIT."""
    global failure
    (payment,) = database.execute(
        "INSERT INTO payments (amount, currency) VALUES (%s, %s) RETURNING id",
        (order["amount"], order["currency"]),
    ).fetchone()
    headers = {"content-type": "application/json", "location": f"/payments/{payment}"}
    body = json.dumps({"id": payment, **order}).encode()
    # Raises where this attempt no longer owns the operation: then nothing may commit.
    database.execute(
        "SELECT semel_complete(%s, %s, %s, %s, %s)",
        (operation_id, attempt, 201, Jsonb(headers), body),
    )
    if failure == "before_commit":
        failure = None
        raise RuntimeError("FAIL_ONCE=before_commit")
    return 201, headers, body


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = self.rfile.read(int(self.headers.get("content-length", 0)))
        operation_id = self.headers.get("semel-operation-id")
        attempt = self.headers.get("semel-attempt")
        if self.path != "/payments" or operation_id is None or attempt is None:
            return self.answer(404, {}, b"")
        try:
            self.answer(*pay(operation_id, int(attempt), order))
        except NotExecuted as error:
            self.log_error("not executed: %r", error.__cause__)
            # The gateway may let the same key execute again.
            self.answer(503, {"semel-outcome": "not-executed"}, b"")
        except psycopg.Error as error:
            self.log_error("COMMIT was not answered: %r", error)
            self.answer(504, {"semel-outcome": "unknown"}, b"")

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    with psycopg.connect(DATABASE) as database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS payments ("
            " id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " amount bigint NOT NULL, currency text NOT NULL)"
        )
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Handler)
    print(f"listening http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
