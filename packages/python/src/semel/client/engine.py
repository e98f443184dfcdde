"""A call: journal, requests, journal. Without I/O.

The generators yield what has to be done, and are sent what came of it. The clients perform it, with
threads or with tasks. The decisions are in `attempts`.
"""

from __future__ import annotations

import random as random_module
import re
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from . import errors
from .attempts import Attempts, Finished, Note, Quota, QuotaOptions
from .decision import Verdict, decide
from .journal import MAX_INTENT_BYTES, Entry, Journal, StoredResponse
from .messages import Answer, Failure, Headers, Request, Response, has_header, mask_headers, without_headers
from .profile import IETF, Profile
from .url import origin_of, serialize_url

# A credential in the journal would outlive its rotation, and could be read with the file.
SECRET_HEADERS = frozenset(
    {"authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"}
)
# Headers that belong to a body. A request for a status has none.
_BODY_HEADERS = ("content-type", "content-length", "content-encoding", "transfer-encoding", "expect")
# What h11 sends. Any other header would be refused at every attempt.
_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9a-z]+")
_VALUE = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")


def _system_clock() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Options:
    """How a client behaves. The defaults suit payments."""

    profile: Profile = IETF
    # How long a call may take. An open intent continues with the next call.
    deadline_ms: int = 600_000
    attempt_timeout_ms: int = 30_000
    # How long a server is assumed to know a key; `Idempotency-Key-Expires` shortens it. After it nothing
    # is sent, because it might execute again. Semel and Stripe keep keys for at least 24 hours.
    key_lifetime_ms: int = 24 * 3600 * 1000
    quota: QuotaOptions = QuotaOptions()
    # The longest response that the journal keeps, and the longest request.
    max_response_bytes: int = 1024 * 1024
    max_request_bytes: int = 8 * 1024 * 1024
    # How many intents `resume` finishes at a time. A server that hangs keeps each for a whole deadline.
    resume_at_once: int = 8
    # The origins (`https://api.example`) of the stored requests that `resume` and `finish` send: `resume` leaves
    # out others, and `finish` refuses them. Name them where clients for several APIs share a journal, so that no
    # server gets the credentials of another. Without any, a client with credentials resumes nothing while
    # intents of several origins are open.
    origins: tuple[str, ...] = ()
    # Request headers whose values the journal does not keep, in lower case.
    secret_headers: frozenset[str] = SECRET_HEADERS
    # Milliseconds since the epoch: it is compared with what other processes stored.
    clock: Callable[[], int] = _system_clock
    # From 0 to 1, for jitter.
    random: Callable[[], float] = random_module.random

    def serves(self, url: str) -> bool:
        """Whether the client's credentials are for the server of a stored request."""
        own = [origin_of(serialize_url(origin)) for origin in self.origins]
        return not own or origin_of(url) in own


@dataclass(frozen=True)
class Send:
    request: Request
    timeout_ms: int


@dataclass(frozen=True)
class Sleep:
    ms: int


@dataclass(frozen=True)
class Write:
    """An operation of the journal, which waits for the disk."""

    perform: Callable[[], Any]


@dataclass(frozen=True)
class TooLong:
    """A response that is too long to be read."""

    status: int
    headers: Headers


@dataclass(frozen=True)
class Final:
    response: Response
    replayed_from_journal: bool = False


Run = Generator[Send | Sleep | Write, Any, Final]


@dataclass
class Engine:
    journal: Journal
    options: Options
    quota: Quota = field(init=False)

    def __post_init__(self) -> None:
        self.quota = Quota(self.options.quota)

    def call(self, intent: str, request: Request) -> Run:
        """The intent into the journal, then the requests, then the response into the journal."""
        self._check(intent, request)
        options = self.options
        kept = mask_headers(request.headers, options.secret_headers)
        stored = replace(request, headers=kept)
        now_ms = options.clock()
        # Durable before the first byte is sent: after a crash the same key is used again.
        entry: Entry = yield Write(
            lambda: self.journal.intend(
                intent, stored, options.key_lifetime_ms, now_ms, options.profile.key_form
            )
        )
        # The journals check it as well.
        if entry.fingerprint != request.fingerprint:
            raise errors.IntentConflict(intent)
        return (yield from self._finish(entry, request))

    def finish(self, entry: Entry, client_has: Callable[[str], bool]) -> Run:
        """Finishes an intent with the request that the journal has of it."""
        if entry.response is not None:
            return (yield from self._finish(entry, entry.request))
        if not self.options.serves(entry.request.url):
            raise errors.ForeignOrigin(entry.intent, origin_of(entry.request.url))
        # Without its credentials it would be refused, and the refusal would end the intent, although the
        # operation may have happened.
        # Also those that only the client which stored it knew as credentials.
        masked = [name for name, value in entry.request.headers if not value]
        missing = [name for name in masked if not client_has(name)]
        if missing:
            raise errors.CredentialsMissing(entry.intent, missing)
        key_form = self.options.profile.key_form
        started: Entry | None = yield Write(
            lambda: self.journal.start(entry.intent, entry.key, key_form)
        )
        if started is None:
            raise errors.Forgotten(entry.intent)
        headers = without_headers(started.request.headers, masked)
        return (yield from self._finish(started, replace(started.request, headers=headers)))

    def send(self, request: Request, entry: Entry | None = None) -> Run:
        """Sends a request until an answer ends the call. Without an entry it has no intent."""
        options = self.options
        now_ms = options.clock()
        intent = None if entry is None else entry.intent
        profile = options.profile.with_key_form(None if entry is None else entry.key_form)
        attempts = Attempts(profile, intent, request.url, now_ms + options.deadline_ms)
        if entry is not None:
            attempts.key_ends_ms = entry.expires_ms
            attempts.is_repeated = entry.is_sent
            attempts.note = entry.note
        note = attempts.note
        has_key = entry is not None or has_header(request.headers, profile.header)
        is_retried = has_key or request.method == "GET"
        while True:
            # Also after each delay and poll: the machine may have slept meanwhile.
            now_ms = options.clock()
            attempts.check_deadline(now_ms)
            timeout_ms = min(options.attempt_timeout_ms, attempts.deadline_ms - now_ms)
            message = _message(profile, request, entry, attempts.status_url)
            received: Answer | TooLong = yield Send(message, timeout_ms)
            # Without a body, its status and headers decide.
            is_too_long = isinstance(received, TooLong)
            answer = Response(received.status, received.headers) if isinstance(received, TooLong) else received
            if not is_retried:
                if isinstance(answer, Failure):
                    raise errors.Failed(answer)
                if is_too_long:
                    raise errors.ResponseNotStored(intent, answer)
                return Final(answer)
            while True:
                step = attempts.advance(answer, options.clock(), options.random(), self.quota)
                if not isinstance(step, Finished):
                    break
                if entry is None:
                    attempts.give_back(self.quota)
                    if is_too_long:
                        raise errors.ResponseNotStored(intent, step.response)
                    return Final(step.response)
                stored = yield from self._store(entry, step, is_too_long)
                if stored is not None:
                    attempts.give_back(self.quota)
                    return Final(self._typed(entry.intent, stored))
                # Another process found the intent meanwhile: its request may have been the first.
                attempts.is_repeated = True
            if entry is not None and attempts.note != note:
                note = attempts.note
                yield self._write_note(entry, note)
            if isinstance(step, errors.CallError):
                raise step
            if step.delay_ms is not None:
                yield Sleep(step.delay_ms)

    def _check(self, intent: str, request: Request) -> None:
        options = self.options
        if not 0 < len(intent.encode()) <= MAX_INTENT_BYTES or "\0" in intent:
            raise ValueError(f"an intent has 1 to {MAX_INTENT_BYTES} bytes, and none is zero")
        if has_header(request.headers, options.profile.header):
            raise ValueError(f"the client sends {options.profile.header} itself: remove it")
        for name, value in request.headers:
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                # Without the value, which may be a credential.
                raise ValueError(f"the header {name!r} cannot be sent")
        if not _NAME.fullmatch(request.method.lower()):
            raise ValueError(f"not a method: {request.method!r}")
        if len(request.body) > options.max_request_bytes:
            raise ValueError(f"a request has at most {options.max_request_bytes} bytes")

    def _finish(self, entry: Entry, request: Request) -> Run:
        if entry.response is not None:
            return Final(self._typed(entry.intent, entry.response), replayed_from_journal=True)
        return (yield from self.send(request, entry))

    def _store(
        self, entry: Entry, end: Finished, is_too_long: bool
    ) -> Generator[Write, StoredResponse | None, StoredResponse | None]:
        """What the caller gets. `None`: it ends no intent that another process may have sent."""
        is_short = len(end.response.body) <= self.options.max_response_bytes
        response = _stored(end.response, is_short and not is_too_long)
        now_ms = self.options.clock()
        stored = yield Write(
            lambda: self.journal.finish(entry.intent, entry.key, response, now_ms, end.unless_shared)
        )
        if stored is None or is_short or is_too_long:
            return stored
        return _stored(end.response, True)

    def _write_note(self, entry: Entry, note: Note) -> Write:
        return Write(lambda: self.journal.note(entry.intent, entry.key, note))

    def _typed(self, intent: str, stored: StoredResponse) -> Response:
        """The response that ended an intent, or the error that it stands for."""
        response = Response(stored.status, stored.headers, stored.body or b"")
        if stored.body is None:
            raise errors.ResponseNotStored(intent, response)
        verdict = decide(self.options.profile, response).verdict
        if verdict is Verdict.KEY_REUSED:
            raise errors.KeyReused(intent, response)
        if verdict is Verdict.KEY_EXPIRED:
            raise errors.KeyExpired(intent, response)
        if verdict is Verdict.RESPONSE_NOT_STORED:
            raise errors.ResponseNotStored(intent, response)
        return response

def _message(
    profile: Profile, request: Request, entry: Entry | None, status_url: str | None
) -> Request:
    if status_url is not None:
        kept = without_headers(request.headers, (profile.header, *_BODY_HEADERS))
        return Request("GET", status_url, kept)
    if entry is None:
        return request
    kept = without_headers(request.headers, (profile.header,))
    key = profile.header, profile.key_value(entry.key)
    return replace(request, headers=(*kept, key))


def _stored(response: Response, is_kept: bool) -> StoredResponse:
    return StoredResponse(response.status, response.headers, response.body if is_kept else None)
