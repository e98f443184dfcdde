"""AWS Lambda Powertools' idempotency over Redis, called by a small HTTP server in one process.

Settings, as its documentation shows them: the caller and the key together are the idempotency
key (event_key_jmespath); the context says that six seconds of the invocation are left, which is
its lease. In Lambda the platform ends the invocation then, and a handler never outlives its lease;
so it is longer than the slow case (five seconds), and shorter than the probes' retries (twelve).
Records live for an hour, its default.

Payload validation is off. It is documented, but over Redis version 3.37.0 forgets the hash of a
finished record, so that every retry of the same request is refused (in the TypeScript edition
this was issue 5705). VALIDATE=1 turns it on, to see that.

A missing key is refused here: the library sees a list with one value left in it as a key.
"""

import http.client
import json
import os
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from redis import Redis

ANSWER_BYTES = 1024
# A shorter one would be a state that the platform excludes: a handler that runs on without it.
LEASE_MS = 6000

LEDGER = urlsplit(os.environ["LEDGER_URL"])
PER_THREAD = threading.local()


class Context:
    """What Lambda would hand in, as far as idempotency asks for it."""

    def get_remaining_time_in_millis(self):
        return LEASE_MS


CONFIG = IdempotencyConfig(
    event_key_jmespath="[caller, key]",
    payload_validation_jmespath="body" if os.environ.get("VALIDATE") else "",
)
CONFIG.register_lambda_context(Context())
STORE = CachePersistenceLayer(client=Redis.from_url(os.environ["STORE"], decode_responses=True))


def effect(reference):
    """Adds one effect to the ledger, over a connection that this thread keeps."""
    if not hasattr(PER_THREAD, "ledger"):
        PER_THREAD.ledger = http.client.HTTPConnection(LEDGER.hostname, LEDGER.port)
    PER_THREAD.ledger.request("POST", "/effects", body=json.dumps({"reference": reference}))
    response = PER_THREAD.ledger.getresponse()
    response.read()
    if response.status >= 300:
        raise RuntimeError(f"ledger: {response.status}")


@idempotent_function(data_keyword_argument="event", config=CONFIG, persistence_store=STORE)
def work(event, way):
    """One effect and an answer. X-Work drives how it goes; see ../README.md for the ways."""
    name, _, number = way.partition(":")
    reference = event["body"].get("merchant_reference", "")
    if name not in ("quick", "declined"):
        effect(reference)
    if name == "slow":
        time.sleep(int(number) / 1000)
    if name == "timeout":
        return answer(504, {"error": "the provider did not answer in time"})
    # The id is new with every execution, so that an answer shows whose it is.
    if name == "declined":
        return answer(402, {"id": str(uuid.uuid4()), "status": "declined"})
    body = {
        "id": str(uuid.uuid4()),
        "status": "succeeded",
        "merchant_reference": reference,
        "note": "",
    }
    size = int(number) if name == "large" else ANSWER_BYTES
    body["note"] = "x" * max(0, size - len(json.dumps(body)))
    return answer(201, body)


def answer(status, body):
    """As Lambda answers an HTTP request: the body is text, and so comes back byte for byte."""
    return {"statusCode": status, "body": json.dumps(body)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # The head and the body leave together.
    wbufsize = -1

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        key = self.headers.get("idempotency-key")
        if not key:
            return self.reply(answer(400, {"error": "a key is required"}))
        event = {"caller": self.headers.get("authorization", ""), "key": key, "body": body}
        try:
            result = work(event=event, way=self.headers.get("x-work", ""))
        except IdempotencyAlreadyInProgressError as error:
            return self.reply(answer(409, {"error": str(error)}))
        except IdempotencyValidationError as error:
            return self.reply(answer(422, {"error": str(error)}))
        except Exception as error:
            return self.reply(answer(500, {"error": repr(error)}))
        return self.reply(result)

    def reply(self, result):
        data = result["body"].encode()
        self.send_response(result["statusCode"])
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """A line for each request would be measured, too."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
