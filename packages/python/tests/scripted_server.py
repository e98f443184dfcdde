"""A server that expects certain requests, and responds as its script says: on real sockets."""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

# Bounds every wait, so that a broken client fails a test instead of hanging it.
PATIENCE_SECONDS = 20


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """Serves one exchange after another, each on a connection of its own."""

    def __init__(self, profile: str, now_ms: Callable[[], int]) -> None:
        self._profile = profile
        self._now_ms = now_ms
        self.keys: dict[str, str] = {}
        self.problems: list[str] = []
        self._exchanges: list[dict[str, Any]] = []
        self._next = 0
        self._stalled: list[socket.socket] = []
        self._closed = False
        # Requests wait while it is cleared, so that other calls can begin.
        self.gate = threading.Event()
        self.gate.set()
        self.received = threading.Event()
        # What happens while the server has a request.
        self.meanwhile: Callable[[dict[str, Any]], None] = lambda _: None
        # Keeps the port from other programs while nothing listens; connections are refused.
        self._bound = self._bind(0)
        self.port = self._bound.getsockname()[1]
        self._listener = self._listen()
        self.url = f"http://127.0.0.1:{self.port}"

    def begin(self, exchanges: list[dict[str, Any]]) -> None:
        """Sets the script of a step."""
        self._exchanges = exchanges
        self._next = 0
        self.received.clear()
        self._open_or_close()

    def on_sleep(self) -> None:
        """A refused connection is noticed by the delay after it."""
        if self._is_refused():
            self._next += 1
            self._open_or_close()

    def end(self) -> None:
        """Checks that the script was used up."""
        if self._is_refused():
            self._next += 1
        missing = self._exchanges[self._next :]
        if missing:
            self.problems.append(f"requests that did not come: {missing}")
        for connection in self._stalled:
            connection.close()
        self._stalled.clear()

    def close(self) -> None:
        self._closed = True
        self._stop_listening()
        self._bound.close()

    def _is_refused(self) -> bool:
        script = self._exchanges
        return self._next < len(script) and "refuse" in script[self._next]["respond"]

    def _open_or_close(self) -> None:
        is_open = self._listener.fileno() >= 0
        if self._is_refused() and is_open:
            self._stop_listening()
        elif not self._is_refused() and not is_open:
            self._listener = self._listen()

    def _bind(self, port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    def _listen(self) -> socket.socket:
        listener = self._bind(self.port)
        listener.listen()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _stop_listening(self) -> None:
        # A close alone would leave the thread in `accept`, and the port open.
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                self._serve(connection)
            except OSError as error:
                self.problems.append(f"the connection failed: {error}")

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        request = _read(connection)
        if request is None:
            connection.close()
            return
        if self._next >= len(self._exchanges):
            self.problems.append(f"an unexpected request: {request}")
            connection.close()
            return
        exchange = self._exchanges[self._next]
        self._check(request, exchange.get("expect", {}))
        self.received.set()
        self.gate.wait(PATIENCE_SECONDS)
        self.meanwhile(exchange["respond"])
        # Before the response: the client may send the next request at once.
        self._next += 1
        self._open_or_close()
        respond = exchange["respond"]
        if "stall" in respond:
            self._stalled.append(connection)
            return
        if respond.get("disconnect") != "before_head":
            connection.sendall(self._render(respond))
        connection.close()

    def _check(self, request: Received, expect: dict[str, Any]) -> None:
        for name in ("method", "path"):
            if name in expect and getattr(request, name) != expect[name]:
                self.problems.append(f"{name}: expected {expect[name]!r}, got {request}")
        body = expected_body(expect)
        if body is not None and request.body != body:
            self.problems.append(f"body: expected {body!r}, got {request.body!r}")
        if "key" in expect:
            self._check_key(expect["key"], request.headers.get("idempotency-key"))

    def _check_key(self, symbol: str | None, value: str | None) -> None:
        if symbol is None or value is None:
            if symbol is not None or value is not None:
                self.problems.append(f"key: expected {symbol}, got {value}")
            return
        if self._profile == "ietf":
            if not re.fullmatch('"[^"]+"', value):
                self.problems.append(f"key: not an RFC 9651 String: {value}")
            value = value.strip('"')
        known = self.keys.setdefault(symbol, value)
        if known != value or list(self.keys.values()).count(value) > 1:
            self.problems.append(f"key {symbol}: {value}, with {self.keys}")

    def _render(self, respond: dict[str, Any]) -> bytes:
        body = str(respond.get("body", "")).encode()
        status = respond.get("status", 200)
        length = len(body) + (10 if respond.get("disconnect") == "in_body" else 0)
        lines = [f"HTTP/1.1 {status} Scripted", "connection: close"]
        if status != 204:
            lines.append(f"content-length: {length}")
        for name, value in respond.get("headers", {}).items():
            lines.append(f"{name}: {self._dated(value)}")
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _dated(self, value: str) -> str:
        def date(match: re.Match[str]) -> str:
            return formatdate(self._now_ms() // 1000 + int(match[1]), usegmt=True)

        return re.sub(r"\{\{now([+-]\d+)s\}\}", date, value)


def expected_body(message: dict[str, Any]) -> bytes | None:
    if "body_base64" in message:
        return base64.b64decode(message["body_base64"])
    return str(message["body"]).encode() if "body" in message else None


def _read(connection: socket.socket) -> Received | None:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return None
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return Received(method, path, headers, body)
