"""The same as transports of httpx, for code that has an `httpx.Client` already.

```python
http = httpx.Client(transport=Transport(SqliteJournal("payments.db")))
http.post(url, json=order, extensions={"semel_intent": "invoice-7781"})
```

A request without an intent, but with a key of its own, is retried with that key, and forgotten when
the process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import httpx

from .client import AsyncRunner, Runner
from .engine import Final, Options
from .errors import Failed, GaveUp
from .exchange import from_httpx, over_async_transport, over_transport, to_httpx
from .journal import Journal
from .messages import Failure

# The name of the request's extension that holds the intent.
INTENT = "semel_intent"


class Transport(httpx.BaseTransport):
    def __init__(
        self,
        journal: Journal,
        *,
        inner: httpx.BaseTransport | None = None,
        options: Options | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner or httpx.HTTPTransport()
        exchange = over_transport(self._inner)
        self._runner = Runner(journal, exchange, options or Options(), sleep)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        stored = from_httpx(request, request.read())
        try:
            final = self._runner.call(_intent(request), stored)
        except (Failed, GaveUp) as error:
            final = _without_intent(error)
        return to_httpx(final.response, request, final.replayed_from_journal)

    def close(self) -> None:
        self._inner.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    def __init__(
        self,
        journal: Journal,
        *,
        inner: httpx.AsyncBaseTransport | None = None,
        options: Options | None = None,
        sleep: Callable[[float], Any] = anyio.sleep,
    ) -> None:
        self._inner = inner or httpx.AsyncHTTPTransport()
        exchange = over_async_transport(self._inner)
        self._runner = AsyncRunner(journal, exchange, options or Options(), sleep)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        stored = from_httpx(request, await request.aread())
        try:
            final = await self._runner.call(_intent(request), stored)
        except (Failed, GaveUp) as error:
            final = _without_intent(error)
        return to_httpx(final.response, request, final.replayed_from_journal)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _intent(request: httpx.Request) -> str | None:
    intent = request.extensions.get(INTENT)
    return intent if isinstance(intent, str) else None


def _without_intent(error: Failed | GaveUp) -> Final:
    """Without an intent the caller gets what came last, as from any transport."""
    last = error.failure if isinstance(error, Failed) else error.last
    if error.intent is not None or last is None:
        raise error
    if isinstance(last, Failure):
        raise last.cause
    return Final(last)
