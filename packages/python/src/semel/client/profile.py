"""What differs between providers: the form of the key and of refusals, and the delays."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from .messages import Response, header

# The form of RFC 9110, and the two obsolete ones that a recipient has to accept.
_HTTP_DATES = (
    re.compile(r"[A-Z][a-z]{2}, (?P<d>\d{2}) (?P<m>[A-Z][a-z]{2}) (?P<y>\d{4}) (?P<t>\d{2}:\d{2}:\d{2}) GMT"),
    re.compile(r"[A-Z][a-z]{5,8}, (?P<d>\d{2})-(?P<m>[A-Z][a-z]{2})-(?P<y>\d{2}) (?P<t>\d{2}:\d{2}:\d{2}) GMT"),
    re.compile(r"[A-Z][a-z]{2} (?P<m>[A-Z][a-z]{2}) (?P<d>[ \d]\d) (?P<t>\d{2}:\d{2}:\d{2}) (?P<y>\d{4})"),
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Semel's dead letters ask for five minutes, the longest delay that a well-behaved server has.
_LONGEST_RETRY_AFTER_MS = 300_000


@dataclass(frozen=True)
class Backoff:
    """Exponential delays with jitter."""

    # The upper bounds of the first delay and of all delays.
    base_ms: int
    cap_ms: int
    # The part of a delay that is not random: 0.0 is full jitter.
    fixed: float = 0.0
    # No delay is shorter.
    floor_ms: int = 0

    def delay_ms(self, nth: int, random: float) -> int:
        """Delay number `nth` from 0; `random` is between 0 and 1."""
        # The exponent is bounded: far above it the cap applies anyway.
        bound_ms = min(self.base_ms * 2 ** min(nth, 30), self.cap_ms)
        share = self.fixed + (1 - self.fixed) * min(max(random, 0.0), 1.0)
        return max(int(bound_ms * share), self.floor_ms)


@dataclass(frozen=True)
class RetryAfter:
    """How `Retry-After` is read."""

    longest_ms: int
    # Whether a date is read too, and a longer delay is shortened; else both are ignored.
    is_lenient: bool

    def delay_ms(self, response: Response, now_ms: int) -> int:
        """What the response asks for; 0 without a readable header."""
        value = header(response.headers, "retry-after") or ""
        if value.isascii() and value.isdigit():
            # More digits than any sensible delay has are a long time, and no error.
            asked_ms = int(value) * 1000 if len(value) < 15 else self.longest_ms + 1
        elif self.is_lenient:
            asked_ms = max((parse_date_ms(value) or now_ms) - now_ms, 0)
        else:
            return 0
        if asked_ms > self.longest_ms:
            return self.longest_ms if self.is_lenient else 0
        return asked_ms


@dataclass(frozen=True)
class Profile:
    """The dialect of a provider. For another one, `dataclasses.replace` fields of `IETF` or `STRIPE`."""

    name: str
    # Whether the key is sent as a String of RFC 9651, `"…"`.
    quoted: bool
    # Whether refusals are problem bodies (`code`, `retryable`), or have a member `error`.
    has_problems: bool
    retry_after: RetryAfter
    # Delays after failures, and while another request with the key is in progress.
    backoff: Backoff
    # Delays while the outcome is unknown: reconciling takes seconds to minutes.
    slow: Backoff
    # Statuses that mean: later, and nothing was executed.
    waits: frozenset[int]
    # Whether a 409 means that a request with this key is in progress even without `Retry-After`.
    conflict_waits: bool
    # Whether a status is a failure that may pass.
    fails: Callable[[int], bool]
    # Whether `Idempotent-Replayed: true` is final whatever the status: the server stored it.
    replayed_is_final: bool
    header: str = "idempotency-key"

    def key_value(self, key: str) -> str:
        return f'"{key}"' if self.quoted else key

    @property
    def key_form(self) -> str:
        """The header with the key, as the journals store it."""
        return f"{self.header}: {self.key_value('{key}')}"

    def with_key_form(self, form: str | None) -> Profile:
        """With the form in which a key was first sent: in another one it would be another key."""
        if form is None:
            return self
        name, _, value = form.partition(": ")
        return replace(self, header=name, quoted=value.startswith('"'))


def _ietf_fails(status: int) -> bool:
    # Also those of proxies, such as 520 to 530. A server that implements no such method or version never will.
    return status >= 500 and status not in (501, 505)


def _stripe_fails(status: int) -> bool:
    return status >= 500


IETF = Profile(
    name="ietf",
    quoted=True,
    has_problems=True,
    retry_after=RetryAfter(_LONGEST_RETRY_AFTER_MS, is_lenient=True),
    backoff=Backoff(base_ms=500, cap_ms=8_000),
    slow=Backoff(base_ms=5_000, cap_ms=60_000),
    waits=frozenset({408, 425, 429}),
    conflict_waits=False,
    fails=_ietf_fails,
    replayed_is_final=True,
)

# The retry rules of Stripe's SDKs. Stripe sends `Stripe-Should-Retry: true` with the other statuses that
# its clients should retry.
STRIPE = replace(
    IETF,
    name="stripe",
    quoted=False,
    has_problems=False,
    retry_after=RetryAfter(60_000, is_lenient=False),
    backoff=Backoff(base_ms=500, cap_ms=5_000, fixed=0.5, floor_ms=500),
    waits=frozenset(),
    conflict_waits=True,
    fails=_stripe_fails,
    replayed_is_final=False,
)


def parse_date_ms(value: str) -> int | None:
    """An HTTP date in milliseconds since the epoch."""
    match = next(filter(None, (form.fullmatch(value) for form in _HTTP_DATES)), None)
    if match is None or match["m"] not in _MONTHS:
        return None
    year = int(match["y"])
    if len(match["y"]) == 2:
        year += 2000 if year < 70 else 1900
    hour, minute, second = (int(part) for part in match["t"].split(":"))
    try:
        month = _MONTHS.index(match["m"]) + 1
        date = datetime(year, month, int(match["d"]), hour, minute, tzinfo=timezone.utc)
    except ValueError:
        return None
    # A leap second, too.
    return int(date.timestamp() + second) * 1000
