"""The decision table: what a response means for the request that it answers.

Pure functions, without I/O and time. The table in prose is in `packages/scenarios/README.md`, and the
clients in all languages run the same scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .messages import Answer, Failure, Response, has_header, header
from .profile import Profile

_STATUS_PATH = "/.semel/operations/"


class Verdict(Enum):
    # The response is the result.
    FINAL = "final"
    # Final as well: the server has no response for this key, and a new key could execute again.
    KEY_REUSED = "idempotency_key_reused"
    KEY_EXPIRED = "idempotency_key_expired"
    RESPONSE_NOT_STORED = "idempotency_response_not_stored"
    # It may or may not have been executed. Ask slowly, with the same key.
    UNKNOWN = "idempotency_outcome_unknown"
    # The server asks to come back. Costs no quota.
    WAIT = "wait"
    # A failure that may pass. A retry costs quota.
    FAILURE = "failure"
    # Of a status resource: it is over, so the request is sent again at once.
    OVER = "over"

    @property
    def is_end(self) -> bool:
        return self in (
            Verdict.FINAL,
            Verdict.KEY_REUSED,
            Verdict.KEY_EXPIRED,
            Verdict.RESPONSE_NOT_STORED,
        )


_CODED = {
    verdict.value: verdict
    for verdict in (
        Verdict.KEY_REUSED,
        Verdict.KEY_EXPIRED,
        Verdict.RESPONSE_NOT_STORED,
        Verdict.UNKNOWN,
    )
}


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    # The server's id of an operation whose outcome is unknown.
    operation_id: str | None = None
    # `Location` of the operation's status.
    status_resource: str | None = None


def decide(profile: Profile, answer: Answer) -> Decision:
    """What the answer to a request means. The first rule that matches decides."""
    if isinstance(answer, Failure):
        return Decision(Verdict.FAILURE)
    code, retryable, is_misuse = _read_refusal(profile, answer)
    if code in _CODED:
        verdict = _CODED[code]
        is_unknown = verdict is Verdict.UNKNOWN
        return Decision(verdict, _operation_id(answer) if is_unknown else None)
    if is_misuse:
        return Decision(Verdict.KEY_REUSED)
    status = answer.status
    should_retry = header(answer.headers, "stripe-should-retry")
    if should_retry == "false" or retryable is False:
        return Decision(Verdict.FINAL)
    if should_retry == "true" or retryable is True:
        waits = status in (408, 409, 425, 429)
        return Decision(Verdict.WAIT if waits else Verdict.FAILURE)
    if profile.replayed_is_final and header(answer.headers, "idempotent-replayed") == "true":
        return Decision(Verdict.FINAL)
    if status == 202 and _is_in_progress(answer):
        return Decision(Verdict.WAIT, status_resource=header(answer.headers, "location"))
    if status == 409 and (profile.conflict_waits or has_header(answer.headers, "retry-after")):
        return Decision(Verdict.WAIT)
    if status in profile.waits:
        return Decision(Verdict.WAIT)
    return Decision(Verdict.FAILURE if profile.fails(status) else Verdict.FINAL)


def decide_poll(answer: Answer) -> Decision:
    """What the answer of a status resource means."""
    if isinstance(answer, Failure) or answer.status != 200:
        return Decision(Verdict.FAILURE)
    status = answer.json_object().get("status")
    if status == "in_progress":
        return Decision(Verdict.WAIT)
    if status == "unknown":
        return Decision(Verdict.UNKNOWN, _operation_id(answer))
    return Decision(Verdict.OVER if isinstance(status, str) else Verdict.FAILURE)


def _read_refusal(profile: Profile, response: Response) -> tuple[str | None, bool | None, bool]:
    """The code, whether it may be retried, and whether it is Stripe's word for another request."""
    # A success of the application is none, whatever its body.
    if response.status < 400:
        return None, None, False
    if profile.has_problems:
        if response.media_type != "application/problem+json":
            return None, None, False
        body = response.json_object()
        retryable = body.get("retryable")
        return _text(body.get("code")), retryable if isinstance(retryable, bool) else None, False
    error = response.json_object().get("error")
    if not isinstance(error, dict):
        return None, None, False
    is_misuse = response.status == 400 and error.get("type") == "idempotency_error"
    return _text(error.get("code")), None, is_misuse


def _is_in_progress(response: Response) -> bool:
    """Whether a 202 is Semel's, and not the application's own."""
    body = response.json_object()
    return body.get("status") == "in_progress" and isinstance(body.get("operation_id"), str)


def _operation_id(response: Response) -> str | None:
    operation_id = _text(response.json_object().get("operation_id"))
    if operation_id is not None:
        return operation_id
    location = header(response.headers, "location") or ""
    return location.partition(_STATUS_PATH)[2] or None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
