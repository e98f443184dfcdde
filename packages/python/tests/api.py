"""An API that executes once for each key, in the way of Semel, and fails on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Api:
    """`requests` has the key, the path and the headers of each request."""

    def __init__(self) -> None:
        self.requests: list[tuple[str | None, str, dict[str, str]]] = []
        self.payments: dict[str, dict[str, Any]] = {}
        # Called with the number of the request, from 1: a status to answer with, or "drop" to execute and
        # answer nothing.
        self.fault: Callable[[int], int | str | None] = lambda _: None
        self.on_request: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                api._serve(self)

            def do_GET(self) -> None:
                api._serve(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def keys(self) -> set[str | None]:
        return {key for key, _, _ in self.requests}

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = handler.rfile.read(length)
        if len(body) < length:
            return
        key = handler.headers.get("idempotency-key")
        if key is not None:
            self.on_request(key)
        with self._lock:
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.requests.append((key, handler.path, headers))
            fault = self.fault(len(self.requests))
            if isinstance(fault, int):
                status, answer = fault, {"status": fault}
            else:
                payment = {"id": len(self.payments) + 1}
                status, answer = 201, self.payments.setdefault(key or str(object()), payment)
        if fault == "drop":
            return
        content = json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
