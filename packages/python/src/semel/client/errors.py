"""How a call can end without a final response. Each error says whether it may have been executed."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import Answer, Failure, Response


class Error(Exception):
    """The base of all errors of this package."""


class CallError(Error):
    """A call without a final response."""

    def __init__(self, intent: str | None, message: str) -> None:
        super().__init__(message if intent is None else f"intent {intent!r}: {message}")
        self.intent = intent


class IntentConflict(CallError):
    """The intent is known with another request. Nothing was sent."""

    def __init__(self, intent: str | None) -> None:
        super().__init__(
            intent,
            "known with another request (method, URL, content type or body differ); nothing was "
            "sent: use a new intent for a new operation",
        )


class Rejected(CallError):
    """The server has no response for this key. A new key could execute a second time."""

    def __init__(self, intent: str | None, response: Response | None, message: str) -> None:
        super().__init__(intent, message)
        self.response = response


class KeyReused(Rejected):
    """The server knows the key with another request. This request was not executed now."""

    def __init__(self, intent: str | None, response: Response | None) -> None:
        super().__init__(intent, response, "the server knows the key with another request")


class KeyExpired(Rejected):
    """It was executed too long ago for the server to repeat its response. Look the result up."""

    def __init__(self, intent: str | None, response: Response | None) -> None:
        super().__init__(
            intent, response, "the server knows the key, but no longer the response; look it up"
        )


class ResponseNotStored(Rejected):
    """The final response is not stored: the server says so of an operation that it executed, or it was too long.

    Where it was too long, `response` has its status and headers, and it was executed if that is a success.
    """

    def __init__(self, intent: str | None, response: Response) -> None:
        status = response.status
        if 200 <= status < 300:
            message = f"it was executed (status {status}), but its response was too long to be stored; look it up"
        elif not response.body:
            message = f"the final response (status {status}) was too long to be stored"
        else:
            message = "it was executed, but the server does not have its response any more; look it up"
        super().__init__(intent, response, message)


class OutcomeUnknown(CallError):
    """It may have been executed, and the server does not know either. The intent stays open."""

    def __init__(self, intent: str | None, operation_id: str | None) -> None:
        operation = "" if operation_id is None else f" (operation {operation_id})"
        super().__init__(
            intent,
            f"the outcome is unknown{operation}; call again later with the same intent, never "
            "with another one",
        )
        self.operation_id = operation_id


class GaveUp(CallError):
    """The call ended before a final response. It may have been executed. The intent stays open."""

    def __init__(self, intent: str | None, reason: str, last: Answer | None) -> None:
        if last is None:
            what = "nothing was sent"
        else:
            what = str(last) if isinstance(last, Failure) else f"status {last.status}"
        advice = {
            "refused": "it may have happened before: remove the reason, and call again with the same intent",
            "key_lifetime": "the lifetime of its key is over: look the outcome up, then forget the intent",
        }
        otherwise = "call again later with the same intent"
        super().__init__(intent, f"gave up ({reason}; {what}); {advice.get(reason, otherwise)}")
        # "deadline" or "quota". "refused": the last response refused the request without regard to its key,
        # such as a 401, and an earlier request may have been executed. "key_lifetime": nothing is sent with
        # the key any more.
        self.reason = reason
        self.last = last


class CredentialsMissing(CallError):
    """The journal does not keep the credentials of this request. Nothing was sent; the intent stays open."""

    def __init__(self, intent: str | None, names: Iterable[str]) -> None:
        listed = ", ".join(names)
        super().__init__(
            intent,
            f"the journal does not keep {listed}: give it to the client itself, so that the intent can "
            "be resumed, or call it again with its request",
        )


class ForeignOrigin(CallError):
    """The client is not set up for the server of this intent. Nothing was sent; the intent stays open."""

    def __init__(self, intent: str | None, origin: str) -> None:
        super().__init__(
            intent,
            f"intents of several APIs share the journal, and this client is not set up for {origin}: name its "
            "origins in the options; nothing was sent",
        )


class Forgotten(CallError):
    """A person made the journal forget the intent meanwhile. Nothing was sent."""

    def __init__(self, intent: str | None) -> None:
        super().__init__(intent, "forgotten meanwhile; nothing was sent")


class Failed(CallError):
    """A request without a key got no response, and is not retried. It may have been executed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(None, f"no response, and without a key there is no retry: {failure}")
        self.failure = failure


class JournalError(Error):
    """The journal failed. If it could not store the intent, nothing was sent."""


class JournalFull(JournalError):
    """As many intents are open as may be. Nothing was sent."""
