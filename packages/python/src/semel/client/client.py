"""The clients: one with threads, one with tasks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlencode

import anyio
import anyio.to_thread
import httpx

from .engine import Engine, Final, Options, Run, Send, Sleep
from .errors import ForeignOrigin, Forgotten, IntentConflict
from .exchange import (
    AsyncExchange,
    CallResponse,
    Exchange,
    bare_request,
    build_request,
    over_async_client,
    over_client,
    to_httpx,
)
from .journal import Journal, OpenIntent
from .messages import Request
from .url import origin_of

# What every `httpx.Client` sends.
_HTTPX_HEADERS = {"accept", "accept-encoding", "connection", "user-agent"}


@dataclass(frozen=True)
class Resumed:
    """What `resume` did with an open intent: its final response, or why it is none."""

    intent: str
    response: CallResponse | None
    error: Exception | None


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
        options = options or Options()
        self._resume_at_once = max(options.resume_at_once, 1)
        self._runner = Runner(journal, over_client(self._http), options, sleep)

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
        and only a `GET` is sent again.

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
        """Finishes the intents that a process left open, several at a time. Call it at start.

        Reports each, in the order in which they were stored.
        """

        found, is_unclear = _to_resume(self._http, self._runner.engine.options, self.journal.list())

        def finish(known: OpenIntent) -> Resumed | None:
            intent = known.intent
            try:
                if is_unclear:
                    raise ForeignOrigin(intent, origin_of(known.url))
                response = self.finish(intent)
            # Whatever is wrong with one, the others go on.
            except Exception as error:
                return _failed(intent, error)
            return None if response is None else Resumed(intent, response, None)

        with ThreadPoolExecutor(self._resume_at_once, "semel-resume") as pool:
            reports = pool.map(finish, found)
            return [report for report in reports if report is not None]

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
        options = options or Options()
        self._resume_at_once = max(options.resume_at_once, 1)
        self._runner = AsyncRunner(journal, over_async_client(self._http), options, sleep)

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
        known = await anyio.to_thread.run_sync(self.journal.list)
        found, is_unclear = _to_resume(self._http, self._runner.engine.options, known)
        waiting = iter(list(enumerate(found)))
        reports: dict[int, Resumed] = {}

        async def work() -> None:
            for nth, open_intent in waiting:
                intent = open_intent.intent
                try:
                    if is_unclear:
                        raise ForeignOrigin(intent, origin_of(open_intent.url))
                    response = await self.finish(intent)
                except Exception as error:
                    report = _failed(intent, error)
                else:
                    report = None if response is None else Resumed(intent, response, None)
                if report is not None:
                    reports[nth] = report

        async with anyio.create_task_group() as tasks:
            for _ in range(self._resume_at_once):
                tasks.start_soon(work)
        return [reports[nth] for nth in sorted(reports)]

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
    # The client's own headers and credentials are not part of it, and may change between attempts.
    request = build_request(method, _absolute(http, url), json, content, headers)
    return request, bare_request(request, 0)


def _absolute(http: httpx.Client | httpx.AsyncClient, url: str) -> str:
    """With the client's `base_url` and `params`, but without httpx's own spelling of the rest."""
    if not re.match("[A-Za-z][-+.A-Za-z0-9]*:", url) and http.base_url.host:
        url = str(http.base_url).rstrip("/") + "/" + url.lstrip("/")
    if http.params:
        before, sharp, fragment = url.partition("#")
        joint = "&" if "?" in before else "?"
        url = before + joint + urlencode(http.params.multi_items()) + sharp + fragment
    return url


def _to_resume(
    http: httpx.Client | httpx.AsyncClient, options: Options, found: list[OpenIntent]
) -> tuple[list[OpenIntent], bool]:
    """The intents for this client, and whether it is unclear for which of them its credentials are."""
    own = [intent for intent in found if options.serves(intent.url)]
    has_credentials = (
        http.auth is not None or len(http.cookies) > 0 or not set(http.headers) <= _HTTPX_HEADERS
    )
    origins = {origin_of(intent.url) for intent in own}
    return own, has_credentials and not options.origins and len(origins) > 1


def _failed(intent: str, error: Exception) -> Resumed | None:
    return None if isinstance(error, Forgotten) else Resumed(intent, None, error)


def _has_header(http: httpx.Client | httpx.AsyncClient, name: str) -> bool:
    """Whether the client itself brings this header to every request."""
    if name == "authorization" and http.auth is not None:
        return True
    return name in http.headers or (name == "cookie" and len(http.cookies) > 0)


def _from_journal(request: Request, final: Final) -> CallResponse:
    built = httpx.Request(request.method, request.url)
    return to_httpx(final.response, built, final.replayed_from_journal)
