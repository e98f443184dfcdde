"""The clients: one with threads, one with tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast

import anyio
import anyio.to_thread
import httpx

from .engine import Engine, Final, Options, Run, Send, Sleep
from .errors import CallError, IntentConflict
from .exchange import (
    AsyncExchange,
    CallResponse,
    Exchange,
    from_httpx,
    over_async_client,
    over_client,
    to_httpx,
)
from .journal import Journal
from .messages import Request


@dataclass(frozen=True)
class Resumed:
    """What `resume` did with an open intent: its final response, or why it is none."""

    intent: str
    response: CallResponse | None
    error: CallError | None


class Runner:
    """Performs calls with threads. Concurrent calls with one intent share one."""

    def __init__(
        self,
        journal: Journal,
        exchange: Exchange,
        options: Options,
        sleep: Callable[[float], None],
    ) -> None:
        self.engine = Engine(journal, options)
        self._exchange = exchange
        self._sleep = sleep
        self._running: dict[str, tuple[bytes, Future[Final]]] = {}
        self._lock = threading.Lock()

    def call(self, intent: str | None, request: Request) -> Final:
        if intent is None:
            return self._perform(self.engine.send(request))
        return self._share(intent, request.fingerprint, self.engine.call(intent, request))

    def finish(
        self, intent: str, client_has: Callable[[str], bool]
    ) -> tuple[Request, Final] | None:
        entry = self.engine.journal.find(intent)
        if entry is None:
            return None
        run = self.engine.finish(entry, client_has)
        return entry.request, self._share(intent, entry.fingerprint, run)

    def _share(self, intent: str, fingerprint: bytes, run: Run) -> Final:
        future: Future[Final] = Future()
        while True:
            with self._lock:
                running = self._running.get(intent)
                if running is None:
                    self._running[intent] = fingerprint, future
                    break
            if running[0] != fingerprint:
                raise IntentConflict(intent)
            try:
                return running[1].result()
            except CancelledError:
                # The thread that performed it was interrupted: this one takes over.
                continue
        try:
            final = self._perform(run)
        except Exception as error:
            self._end(intent)
            future.set_exception(error)
            raise
        except BaseException:
            self._end(intent)
            future.cancel()
            raise
        self._end(intent)
        future.set_result(final)
        return final

    def _end(self, intent: str) -> None:
        with self._lock:
            del self._running[intent]

    def _perform(self, run: Run) -> Final:
        result: Any = None
        while True:
            try:
                step = run.send(result)
            except StopIteration as stop:
                return cast(Final, stop.value)
            if isinstance(step, Send):
                result = self._exchange(step.request, step.timeout_ms)
            elif isinstance(step, Sleep):
                result = self._sleep(step.ms / 1000)
            else:
                result = step.perform()


class AsyncRunner:
    """Performs calls with tasks, on asyncio or trio; the journal waits for the disk in a thread."""

    def __init__(
        self,
        journal: Journal,
        exchange: AsyncExchange,
        options: Options,
        sleep: Callable[[float], Any],
    ) -> None:
        self.engine = Engine(journal, options)
        self._exchange = exchange
        self._sleep = sleep
        self._running: dict[str, _SharedCall] = {}

    async def call(self, intent: str | None, request: Request) -> Final:
        if intent is None:
            return await self._perform(self.engine.send(request))
        return await self._share(
            intent, request.fingerprint, lambda: self.engine.call(intent, request)
        )

    async def finish(
        self, intent: str, client_has: Callable[[str], bool]
    ) -> tuple[Request, Final] | None:
        entry = await anyio.to_thread.run_sync(self.engine.journal.find, intent)
        if entry is None:
            return None
        final = await self._share(
            intent, entry.fingerprint, lambda: self.engine.finish(entry, client_has)
        )
        return entry.request, final

    async def _share(self, intent: str, fingerprint: bytes, start: Callable[[], Run]) -> Final:
        while True:
            running = self._running.get(intent)
            if running is None:
                break
            if running.fingerprint != fingerprint:
                raise IntentConflict(intent)
            await running.ended.wait()
            if running.error is not None:
                raise running.error
            if running.final is not None:
                return running.final
            # The task that performed it was cancelled: this one takes over.
        shared = self._running[intent] = _SharedCall(fingerprint, anyio.Event())
        try:
            shared.final = await self._perform(start())
            return shared.final
        except Exception as error:
            shared.error = error
            raise
        finally:
            del self._running[intent]
            shared.ended.set()

    async def _perform(self, run: Run) -> Final:
        result: Any = None
        while True:
            try:
                step = run.send(result)
            except StopIteration as stop:
                return cast(Final, stop.value)
            if isinstance(step, Send):
                result = await self._exchange(step.request, step.timeout_ms)
            elif isinstance(step, Sleep):
                result = await self._sleep(step.ms / 1000)
            else:
                result = await anyio.to_thread.run_sync(step.perform)


@dataclass
class _SharedCall:
    fingerprint: bytes
    ended: anyio.Event
    final: Final | None = None
    error: Exception | None = None


class Client:
    """Calls that happen once, over `httpx.Client`.

    `http` has what every request needs: `base_url`, credentials, certificates. Its timeouts and
    redirects do not apply. It is closed with the client unless it was given.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        http: httpx.Client | None = None,
        options: Options | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.journal = journal
        self._given = http is not None
        self._http = http or httpx.Client()
        self._runner = Runner(journal, over_client(self._http), options or Options(), sleep)

    def call(
        self,
        intent: str | None,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> CallResponse:
        """The one response of this intent.

        An intent is the caller's own name for something that should happen once, such as
        "invoice-7781". Without one (`None`) the request is sent without a key and without a journal,
        and only `GET` and `HEAD` are sent again.

        Raises a `CallError` where there is no final response.
        """
        request, built = _request(self._http, method, url, json, content, headers)
        final = self._runner.call(intent, request)
        return to_httpx(final.response, built, final.replayed_from_journal)

    def finish(self, intent: str) -> CallResponse | None:
        """Sends the request that the journal has of an intent. `None`: the journal does not know it."""
        found = self._runner.finish(intent, lambda name: _has_header(self._http, name))
        return None if found is None else _from_journal(*found)

    def resume(self) -> list[Resumed]:
        """Finishes the intents that a process left open, one after another. Call it at start."""
        reports = []
        for intent in self.journal.list():
            try:
                response = self.finish(intent.intent)
            except CallError as error:
                reports.append(Resumed(intent.intent, None, error))
            else:
                # None: a person made the journal forget it meanwhile.
                if response is not None:
                    reports.append(Resumed(intent.intent, response, None))
        return reports

    def close(self) -> None:
        """Closes the connections and the journal."""
        if not self._given:
            self._http.close()
        self.journal.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """The same over `httpx.AsyncClient`."""

    def __init__(
        self,
        journal: Journal,
        *,
        http: httpx.AsyncClient | None = None,
        options: Options | None = None,
        sleep: Callable[[float], Any] = anyio.sleep,
    ) -> None:
        self.journal = journal
        self._given = http is not None
        self._http = http or httpx.AsyncClient()
        self._runner = AsyncRunner(journal, over_async_client(self._http), options or Options(), sleep)

    async def call(
        self,
        intent: str | None,
        method: str,
        url: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> CallResponse:
        """See `Client.call`. A cancelled call stays open in the journal."""
        request, built = _request(self._http, method, url, json, content, headers)
        final = await self._runner.call(intent, request)
        return to_httpx(final.response, built, final.replayed_from_journal)

    async def finish(self, intent: str) -> CallResponse | None:
        """See `Client.finish`."""
        found = await self._runner.finish(intent, lambda name: _has_header(self._http, name))
        return None if found is None else _from_journal(*found)

    async def resume(self) -> list[Resumed]:
        """See `Client.resume`."""
        reports = []
        for intent in await anyio.to_thread.run_sync(self.journal.list):
            try:
                response = await self.finish(intent.intent)
            except CallError as error:
                reports.append(Resumed(intent.intent, None, error))
            else:
                if response is not None:
                    reports.append(Resumed(intent.intent, response, None))
        return reports

    async def aclose(self) -> None:
        """Closes the connections and the journal."""
        if not self._given:
            await self._http.aclose()
        await anyio.to_thread.run_sync(self.journal.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _request(
    http: httpx.Client | httpx.AsyncClient,
    method: str,
    url: str,
    json: Any,
    content: bytes | str | None,
    headers: Mapping[str, str] | None,
) -> tuple[Request, httpx.Request]:
    """What is stored: the caller's part, without what `http` adds to every attempt."""
    if json is not None and content is not None:
        raise ValueError("a request has either `json` or `content`")
    # The client's own headers and credentials are not part of it, and may change between attempts.
    bare = httpx.Request(method, http.build_request(method, url).url, json=json, content=content)
    if bare.url.scheme not in ("http", "https") or not bare.url.host:
        raise ValueError(f"not a URL of a server: {url!r}")
    bare.headers.update(headers)
    return from_httpx(bare, bare.read()), bare


def _has_header(http: httpx.Client | httpx.AsyncClient, name: str) -> bool:
    """Whether the client itself brings this header to every request."""
    if name == "authorization" and http.auth is not None:
        return True
    return name in http.headers or (name == "cookie" and len(http.cookies) > 0)


def _from_journal(request: Request, final: Final) -> CallResponse:
    built = httpx.Request(request.method, request.url)
    return to_httpx(final.response, built, final.replayed_from_journal)
