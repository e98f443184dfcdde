"""One call from its first request to its end: which request is next, when, or why there is none.

Without I/O: answers, time and random numbers come in, steps go out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

from .decision import Verdict, decide, decide_poll
from .errors import CallError, GaveUp, OutcomeUnknown
from .messages import Answer, Failure, Response, header
from .profile import Profile, parse_date_ms
from .url import serialize_url

# A longer address of a status resource is not polled: some libraries refuse longer ones.
_LONGEST_LOCATION = 8 * 1024
# What the first attempt that succeeds returns to the quota.
_FIRST_SUCCESS = 1


@dataclass(frozen=True)
class QuotaOptions:
    """A token bucket that retries take from. First attempts are free. The values of the AWS SDKs."""

    # A hundred retries at once, then one in five seconds.
    capacity: float = 500
    cost: float = 5
    refill_per_second: float = 1


class Quota:
    """So that clients do not multiply the load of a server that fails."""

    def __init__(self, options: QuotaOptions) -> None:
        self._options = options
        self._tokens = options.capacity
        self._refilled_ms: int | None = None
        self._lock = threading.Lock()

    def take(self, now_ms: int) -> bool:
        """Takes the cost of one retry; `False` if there is too little."""
        with self._lock:
            if self._refilled_ms is not None:
                # The clock may have been set back.
                elapsed_ms = max(now_ms - self._refilled_ms, 0)
                self._add(elapsed_ms * self._options.refill_per_second / 1000)
            self._refilled_ms = now_ms
            if self._tokens < self._options.cost:
                return False
            self._tokens -= self._options.cost
            return True

    def give_back(self, has_paid: bool) -> None:
        """A call ended with a response: the server works."""
        with self._lock:
            self._add(self._options.cost if has_paid else _FIRST_SUCCESS)

    def _add(self, tokens: float) -> None:
        self._tokens = min(self._tokens + tokens, self._options.capacity)


@dataclass(frozen=True)
class Note:
    """What a journal remembers of an intent that is not finished."""

    expires_ms: int | None = None
    is_unknown: bool = False
    operation_id: str | None = None


@dataclass(frozen=True)
class Finished:
    """The response ends the intent."""

    response: Response
    # Unless another process sent the intent, too: it would say nothing of their request.
    unless_shared: bool = False


@dataclass(frozen=True)
class Next:
    """The next request, after a delay if there is one."""

    delay_ms: int | None


@dataclass
class Attempts:
    """The state of a call."""

    profile: Profile
    intent: str | None
    url: str
    call_ends_ms: int
    # The end of the key's lifetime; None without an entry.
    key_ends_ms: int | None = None
    note: Note = Note()
    # Whether an earlier request with the key may have reached the server, in this call or before it.
    is_repeated: bool = False
    # Where the status is asked for, instead of sending the request.
    status_url: str | None = None
    last: Answer | None = None
    # When the last request was sent.
    _sent_ms: int = field(default=0, init=False)
    _delays: int = field(default=0, init=False)
    _has_paid: bool = field(default=False, init=False)

    @property
    def deadline_ms(self) -> int:
        """The end of the call or of the key's lifetime, whichever is earlier."""
        if self.key_ends_ms is None:
            return self.call_ends_ms
        return min(self.call_ends_ms, self.key_ends_ms)

    def check_deadline(self, now_ms: int) -> None:
        """Raises where nothing may be sent any more."""
        self._sent_ms = now_ms
        if self.key_ends_ms is not None and now_ms >= self.key_ends_ms:
            raise self._give_up("key_lifetime")
        if now_ms >= self.call_ends_ms:
            raise self._give_up("deadline")

    def advance(
        self, answer: Answer, now_ms: int, random: float, quota: Quota
    ) -> Next | Finished | CallError:
        """What follows the answer: a step, or why the call ends with its intent open."""
        self.last = answer
        self._read_expiry(answer)
        is_repeated = self.is_repeated
        self.is_repeated = is_repeated or _may_be_executed(answer)
        if self.status_url is None:
            decision = decide(self.profile, answer, is_repeated)
        else:
            decision = decide_poll(answer)
        verdict = decision.verdict
        # Without an intent there is no key to give up.
        if verdict.is_end or (verdict is Verdict.UNPROTECTED and self.key_ends_ms is None):
            assert isinstance(answer, Response)
            return Finished(answer, decide(self.profile, answer, True) != decision)
        if verdict is Verdict.REFUSED:
            return self._give_up("refused")
        if verdict is Verdict.UNPROTECTED:
            self.note = replace(self.note, is_unknown=True)
            self._end_key(now_ms)
            return self._give_up("key_lifetime")
        if verdict is Verdict.OVER:
            self.status_url = None
            return Next(None)
        if verdict is Verdict.UNKNOWN:
            operation_id = decision.operation_id or self.note.operation_id
            self.note = replace(self.note, is_unknown=True, operation_id=operation_id)
        elif verdict is Verdict.FAILURE:
            self.status_url = None
        elif decision.status_resource is not None:
            self.status_url = _same_origin(self.url, decision.status_resource)
        return self._pause(verdict, answer, now_ms, random, quota)

    def give_back(self, quota: Quota) -> None:
        """The call ended with a response: the server works."""
        quota.give_back(self._has_paid)

    def _pause(
        self, verdict: Verdict, answer: Answer, now_ms: int, random: float, quota: Quota
    ) -> Next | CallError:
        backoff = self.profile.slow if verdict is Verdict.UNKNOWN else self.profile.backoff
        delay_ms = backoff.delay_ms(self._delays, random)
        if isinstance(answer, Response):
            delay_ms = max(delay_ms, self.profile.retry_after.delay_ms(answer, now_ms))
        if now_ms + delay_ms >= self.deadline_ms:
            return self._give_up("deadline")
        if verdict is Verdict.FAILURE:
            if not quota.take(now_ms):
                return self._give_up("quota")
            self._has_paid = True
        self._delays += 1
        return Next(delay_ms)

    def _read_expiry(self, answer: Answer) -> None:
        """How long the server knows the key. It only shortens what was assumed."""
        if isinstance(answer, Failure):
            return
        expires_ms = parse_date_ms(header(answer.headers, "idempotency-key-expires") or "")
        if expires_ms is None:
            return
        # The server's clock may be another. Between its two dates is how long it knows the key, from a moment
        # after the request was sent: the response may have taken long.
        dated_ms = parse_date_ms(header(answer.headers, "date") or "")
        if dated_ms is not None:
            expires_ms = self._sent_ms + max(expires_ms - dated_ms, 0)
        self._end_key(expires_ms)

    def _end_key(self, at_ms: int) -> None:
        """The key is not sent after this time, or an earlier one."""
        known_ms = self.note.expires_ms
        self.note = replace(self.note, expires_ms=at_ms if known_ms is None else min(known_ms, at_ms))
        if self.key_ends_ms is not None:
            self.key_ends_ms = min(self.key_ends_ms, at_ms)

    def _give_up(self, reason: str) -> CallError:
        """A call that ends without an answer about the operation leaves its outcome as it was."""
        if self.note.is_unknown:
            return OutcomeUnknown(self.intent, self.note.operation_id)
        return GaveUp(self.intent, reason, self.last)


def _may_be_executed(answer: Answer) -> bool:
    """Whether the operation may run, or have run, after this answer that is not final.

    A server that sends 425 or 429 refused the request, and 408 says that it did not receive it.
    """
    if isinstance(answer, Failure):
        return answer.is_sent
    return answer.status not in (408, 425, 429)


def _same_origin(url: str, location: str) -> str | None:
    """`Location` relative to the request, where the caller's credentials may go."""
    try:
        # What is refused here cannot be requested.
        target = serialize_url(urljoin(url, location))
        here, there = urlsplit(url), urlsplit(target)
        is_same = (here.scheme, here.hostname, here.port) == (
            there.scheme,
            there.hostname,
            there.port,
        )
    except ValueError:
        return None
    return target if is_same and len(target) <= _LONGEST_LOCATION else None
