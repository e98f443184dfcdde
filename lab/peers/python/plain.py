"""The application of `lab/peers/rust/app` in Python's standard library, for the smoke run of
`cargo xtask compare`: it needs no build and no package, and is never measured."""

import json
import os
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER_BYTES = 1024
EFFECTS = os.environ["LEDGER_URL"] + "/effects"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        work, _, number = self.headers.get("x-work", "").partition(":")
        reference = json.loads(body or b"{}").get("merchant_reference", "")
        answer = {"id": str(uuid.uuid4()), "status": "succeeded", "merchant_reference": reference}
        if work not in ("quick", "declined"):
            operation = self.headers.get("semel-operation-id")
            effect = {"reference": reference, "operation": operation, "id": answer["id"]}
            urllib.request.urlopen(EFFECTS, json.dumps(effect).encode()).read()
        if work == "slow":
            time.sleep(int(number) / 1000)
        if work == "timeout":
            return self.answer(504, {"error": "the provider did not answer in time"})
        if work == "declined":
            return self.answer(402, {"id": answer["id"], "status": "declined"})
        answer["note"] = "x" * (int(number) if work == "large" else ANSWER_BYTES)
        self.answer(201, answer)

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
