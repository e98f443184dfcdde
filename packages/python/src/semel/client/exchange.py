"""One attempt over httpx, with threads or with tasks."""

from __future__ import annotations

import json as json_text
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import anyio
import httpx

from .engine import TooLong
from .messages import Failure, Headers, Request, Response, without_headers
from .url import serialize_url

# The longest response that is read at all. A longer one counts as not stored.
MAX_READ_BYTES = 64 * 1024 * 1024
# They describe the bytes on the wire; the body is stored decoded.
_WIRE_HEADERS = ("connection", "content-encoding", "content-length", "transfer-encoding")
# They belong to a connection, or httpx sets them on every attempt.
_CONNECTION_HEADERS = ("accept-encoding", "connection", "content-length", "host", "transfer-encoding")

# Without a connection the server did not receive the request.
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)

# What httpcore reports before it does it, and before the server receives anything.
_BEFORE_SENDING = (
    "connect_tcp.started",
    "connect_unix_socket.started",
    "start_tls.started",
    "send_request_headers.started",
)

Received = Response | Failure | TooLong


class CallResponse(httpx.Response):
    """A final response."""

    # Whether it was stored by an earlier call, so that nothing was sent.
    replayed_from_journal: bool = False


class Exchange(Protocol):
    """Sends a request once."""

    def __call__(self, request: Request, timeout_ms: int) -> Received: ...


class AsyncExchange(Protocol):
    async def __call__(self, request: Request, timeout_ms: int) -> Received: ...


def from_httpx(request: httpx.Request, body: bytes) -> Request:
    """The request as it is stored and sent again."""
    headers = without_headers(_pairs(request.headers), _CONNECTION_HEADERS)
    return Request(request.method, serialize_url(str(request.url)), headers, body)


def build_request(
    method: str,
    url: str,
    json: Any,
    content: bytes | str | None,
    headers: Mapping[str, str] | None,
) -> Request:
    """A call's request, with bytes that no version of httpx changes: they identify it in the journal."""
    if json is not None and content is not None:
        raise ValueError("a request has either `json` or `content`")
    body = content or b""
    given = headers.multi_items() if isinstance(headers, httpx.Headers) else (headers or {}).items()
    pairs = [(name.lower(), value) for name, value in given]
    if json is not None:
        compact = json_text.dumps(json, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        body = compact
        if not any(name == "content-type" for name, _ in pairs):
            pairs.append(("content-type", "application/json"))
    kept = without_headers(tuple(pairs), _CONNECTION_HEADERS)
    return Request(
        method.upper(), serialize_url(url), kept, body.encode() if isinstance(body, str) else body
    )


def to_httpx(response: Response, request: httpx.Request, replayed: bool) -> CallResponse:
    made = CallResponse(
        response.status,
        headers=_raw(response.headers),
        content=response.body,
        request=request,
    )
    made.replayed_from_journal = replayed
    return made


def exchange_with(open_response: Callable[[Request, int], Iterator[httpx.Response]]) -> Exchange:
    """An attempt that reads the complete response."""
    opened = contextmanager(open_response)

    def exchange(request: Request, timeout_ms: int) -> Received:
        # httpx limits each wait, not their sum.
        until = time.monotonic() + timeout_ms / 1000
        try:
            with opened(request, timeout_ms) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_READ_BYTES:
                        return TooLong(response.status_code, _kept(response))
                    if time.monotonic() > until:
                        raise httpx.ReadTimeout("no complete response in time")
                return Response(response.status_code, _kept(response), bytes(body))
        except httpx.UnsupportedProtocol:
            # The request itself is wrong: no attempt can succeed.
            raise
        except _NOT_CONNECTED as error:
            return Failure(error, is_sent=False)
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Failure(error)

    return exchange


def async_exchange_with(
    open_response: Callable[[Request, int], AsyncIterator[httpx.Response]],
) -> AsyncExchange:
    opened = asynccontextmanager(open_response)

    async def exchange(request: Request, timeout_ms: int) -> Received:
        try:
            with anyio.fail_after(timeout_ms / 1000):
                async with opened(request, timeout_ms) as response:
                    body = bytearray()
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > MAX_READ_BYTES:
                            return TooLong(response.status_code, _kept(response))
                    return Response(response.status_code, _kept(response), bytes(body))
        except httpx.UnsupportedProtocol:
            raise
        except _NOT_CONNECTED as error:
            return Failure(error, is_sent=False)
        except (httpx.TransportError, httpx.DecodingError) as error:
            return Failure(error)
        except TimeoutError:
            return Failure(httpx.ReadTimeout("no complete response in time"))

    return exchange


def over_client(http: httpx.Client) -> Exchange:
    """With the client's headers, authentication and transport; redirects are final responses."""

    def open_response(request: Request, timeout_ms: int) -> Iterator[httpx.Response]:
        built = _build(http, request, timeout_ms)
        built.extensions["trace"] = _bound_connecting(timeout_ms)
        response = http.send(built, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            response.close()

    return exchange_with(open_response)


def over_async_client(http: httpx.AsyncClient) -> AsyncExchange:
    async def open_response(request: Request, timeout_ms: int) -> AsyncIterator[httpx.Response]:
        built = _build(http, request, timeout_ms)
        response = await http.send(built, stream=True, follow_redirects=False)
        try:
            yield response
        finally:
            await response.aclose()

    return async_exchange_with(open_response)


def over_transport(transport: httpx.BaseTransport) -> Exchange:
    def open_response(request: Request, timeout_ms: int) -> Iterator[httpx.Response]:
        sent = bare_request(request, timeout_ms)
        sent.extensions["trace"] = _bound_connecting(timeout_ms)
        response = transport.handle_request(sent)
        response.request = sent
        try:
            yield response
        finally:
            response.close()

    return exchange_with(open_response)


def over_async_transport(transport: httpx.AsyncBaseTransport) -> AsyncExchange:
    async def open_response(request: Request, timeout_ms: int) -> AsyncIterator[httpx.Response]:
        sent = bare_request(request, timeout_ms)
        response = await transport.handle_async_request(sent)
        response.request = sent
        try:
            yield response
        finally:
            await response.aclose()

    return async_exchange_with(open_response)


def _bound_connecting(timeout_ms: int) -> Callable[[str, dict[str, Any]], None]:
    """Bounds the wait for the pool, the connection and TLS together, of which httpx bounds each."""
    until = time.monotonic() + timeout_ms / 1000

    def trace(event: str, info: dict[str, Any]) -> None:
        if not event.endswith(_BEFORE_SENDING):
            return
        left = until - time.monotonic()
        if left <= 0:
            raise httpx.ConnectTimeout("no connection in time")
        if info.get("timeout") is not None:
            info["timeout"] = min(info["timeout"], left)

    return trace


def bare_request(request: Request, timeout_ms: int) -> httpx.Request:
    timeout = httpx.Timeout(timeout_ms / 1000)
    return httpx.Request(
        request.method,
        request.url,
        headers=_raw(request.headers),
        content=request.body,
        extensions={"timeout": timeout.as_dict()},
    )


def _build(
    http: httpx.Client | httpx.AsyncClient, request: Request, timeout_ms: int
) -> httpx.Request:
    built = http.build_request(
        request.method,
        request.url,
        headers=_raw(request.headers),
        content=request.body,
        timeout=timeout_ms / 1000,
    )
    # The client's `params` are in it already, and would replace the query.
    built.url = httpx.URL(request.url)
    return built


def _kept(response: httpx.Response) -> Headers:
    return without_headers(_pairs(response.headers), _WIRE_HEADERS)


def _pairs(headers: httpx.Headers) -> Headers:
    return tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers.raw
    )


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
