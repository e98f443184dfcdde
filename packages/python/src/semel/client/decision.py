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
    # Refused before its key was looked at, and an earlier request with it may have been executed: the call
    # ends, and the intent stays open.
    REFUSED = "refused"
    # It may have been executed by a server that does not know its key, so that a retry would execute again:
    # nothing is sent with it any more.
    UNPROTECTED = "upstream_failed"

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
        Verdict.UNPROTECTED,
    )
}


# They say nothing of an earlier request with the key: a proxy, a gateway, a limit or a check of credentials
# gives them before the operation is looked up. Any other rejection comes from the server that knows the key.
_UNRELATED = frozenset(
    {*range(300, 400), 401, 403, 404, 405, 407, 408, 413, 421, 425, 429, 431, 451, *range(500, 1000)}
)
# Codes of Semel's refusals of a request as it is.
_UNRELATED_CODES = frozenset(
    {
        "idempotency_key_malformed",
        "idempotency_key_missing",
        "path_ambiguous",
        "request_invalid",
        "request_malformed",
    }
)


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    # The server's id of an operation whose outcome is unknown.
    operation_id: str | None = None
    # `Location` of the operation's status.
    status_resource: str | None = None


def decide(profile: Profile, answer: Answer, is_repeated: bool = False) -> Decision:
    """What the answer to a request means. The first rule that matches decides.

    `is_repeated`: an earlier request with this key may have reached the server.
    """
    if isinstance(answer, Failure):
        return Decision(Verdict.FAILURE)
    code, retryable, is_misuse = _read_refusal(profile, answer)
    if code == "idempotency_key_in_progress":
        return Decision(Verdict.WAIT)
    if code in _CODED:
        verdict = _CODED[code]
        is_unknown = verdict is Verdict.UNKNOWN
        return Decision(verdict, _operation_id(answer) if is_unknown else None)
    if is_misuse:
        return Decision(Verdict.KEY_REUSED)
    status = answer.status
    is_replayed = header(answer.headers, "idempotent-replayed") == "true"
    is_unrelated = status in _UNRELATED or code in _UNRELATED_CODES
    is_refused = is_repeated and not is_replayed and is_unrelated
    last = Decision(Verdict.REFUSED if is_refused else Verdict.FINAL)
    should_retry = header(answer.headers, "stripe-should-retry")
    if should_retry == "false" or retryable is False:
        return last
    if should_retry == "true" or retryable is True:
        waits = status in (408, 409, 425, 429)
        return Decision(Verdict.WAIT if waits else Verdict.FAILURE)
    if profile.replayed_is_final and is_replayed:
        return Decision(Verdict.FINAL)
    if status == 202 and _is_in_progress(answer):
        return Decision(Verdict.WAIT, status_resource=header(answer.headers, "location"))
    # The IETF draft has 409 for a request that is outstanding, without a code or `Retry-After`: after an
    # earlier request it is that.
    waits = profile.conflict_waits or is_repeated or has_header(answer.headers, "retry-after")
    if status == 409 and waits:
        return Decision(Verdict.WAIT)
    if status in profile.waits:
        return Decision(Verdict.WAIT)
    return Decision(Verdict.FAILURE) if profile.fails(status) else last


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
    """The code, whether it may be retried, and whether it is Stripe's error for a key with another request."""
    # A success of the application is none, whatever its body.
    if response.status < 400:
        return None, None, False
    body = response.json_object()
    error = body.get("error")
    if not isinstance(error, dict):
        error = {}
    # In both forms whatever the profile: with the wrong one, an unknown outcome must not look final.
    code = _text(error.get("code"))
    retryable = None
    if response.media_type == "application/problem+json":
        # The end of `type` is the code, too: it is the address of its page.
        page = _text(body.get("type")) or ""
        code = _text(body.get("code")) or page.rpartition("/")[2] or code
        if profile.has_problems and isinstance(body.get("retryable"), bool):
            retryable = body["retryable"] is True
    is_misuse = response.status == 400 and error.get("type") == "idempotency_error"
    return code, retryable, is_misuse and not profile.has_problems


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
