"""Journals: where an intent, its key and its request are stored before anything is sent."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from dataclasses import dataclass, replace
from typing import Protocol

from .attempts import Note
from .errors import IntentConflict, JournalError, JournalFull
from .messages import Headers, Request, Response

# How long a caller may repeat itself: the same name is a new intent after it.
RETENTION_MS = 90 * 24 * 3600 * 1000
# Open intents need a person long before there are so many.
MAX_OPEN = 50_000
MAX_INTENT_BYTES = 255


@dataclass(frozen=True)
class StoredResponse:
    status: int
    headers: Headers
    # None: it was over the bound.
    body: bytes | None


@dataclass(frozen=True)
class Entry:
    """An intent: something that should happen once."""

    intent: str
    key: str
    fingerprint: bytes
    # Without credentials; without its body once the intent is finished.
    request: Request
    created_ms: int
    # After this time the server may no longer know the key, so nothing is sent.
    expires_ms: int
    note: Note = Note()
    # Whether it may have been sent before: by another call, or by a process that died.
    is_sent: bool = True
    # None while the intent is open.
    response: StoredResponse | None = None
    # The header with the key as it was first sent, such as `idempotency-key: "{key}"`: in another form it would
    # be another key. None: it was not sent.
    key_form: str | None = None


@dataclass(frozen=True)
class OpenIntent:
    """An intent without a final response."""

    intent: str
    key: str
    method: str
    url: str
    created_ms: int
    expires_ms: int
    is_unknown: bool
    operation_id: str | None


class Journal(Protocol):
    """A store of intents. What a method wrote is durable when it returns.

    Safe with several threads and processes: the first entry and the first response of an intent stay.
    """

    def intend(
        self,
        intent: str,
        request: Request,
        lifetime_ms: int,
        now_ms: int,
        key_form: str | None = None,
    ) -> Entry:
        """Stores a new intent with a new key, and returns what is known of it.

        The request is without credentials. `is_sent` of the result is false if this call stored it; else it
        marks the intent as shared. Raises `IntentConflict` and `JournalFull`.
        """
        ...

    def find(self, intent: str) -> Entry | None: ...

    def start(self, intent: str, key: str, key_form: str | None = None) -> Entry | None:
        """The entry of an intent that is about to be sent without a call.

        It is marked as shared, or, where an application can store intents that it does not send, as sent, with
        this form of the key.
        """
        ...

    def note(self, intent: str, key: str, note: Note) -> None:
        """Remembers what a response said before the call ends."""
        ...

    def finish(
        self,
        intent: str,
        key: str,
        response: StoredResponse,
        now_ms: int,
        unless_shared: bool = False,
    ) -> StoredResponse | None:
        """Stores the final response, and returns the one that is stored.

        With `unless_shared` an intent that is shared stays open, and the result is `None`: the response says
        nothing of what another process may have sent before.
        """
        ...

    def list(self) -> list[OpenIntent]:
        """The open intents in the order in which they were stored."""
        ...

    def forget(self, intent: str) -> bool:
        """Removes an intent, because a person asked for it: its next call is a new operation."""
        ...

    def close(self) -> None: ...


def check_process(opened_by: int) -> None:
    """Raises in a process that was forked after the journal was opened: they would share a connection."""
    if os.getpid() != opened_by:
        raise JournalError("the journal was opened before a fork: open it in the process that uses it")


def new_key() -> str:
    return str(uuid.uuid4())


def open_intent(entry: Entry) -> OpenIntent:
    return OpenIntent(
        entry.intent,
        entry.key,
        entry.request.method,
        entry.request.url,
        entry.created_ms,
        entry.expires_ms,
        entry.note.is_unknown,
        entry.note.operation_id,
    )


class MemoryJournal:
    """Everything but crash safety."""

    def __init__(self, *, max_open: int = MAX_OPEN, retention_ms: int = RETENTION_MS) -> None:
        self._max_open = max_open
        self._retention_ms = retention_ms
        # Both in the order in which they were stored.
        self._open: dict[str, Entry] = {}
        self._finished: dict[str, tuple[int, Entry]] = {}
        # The keys of open intents that others than those who stored them may have sent.
        self._shared: set[str] = set()
        self._lock = threading.Lock()

    def intend(
        self,
        intent: str,
        request: Request,
        lifetime_ms: int,
        now_ms: int,
        key_form: str | None = None,
    ) -> Entry:
        with self._lock:
            known = self._share(intent)
            if known is not None:
                if known.fingerprint != request.fingerprint:
                    raise IntentConflict(intent)
                return known
            if len(self._open) >= self._max_open:
                raise JournalFull(f"{self._max_open} intents are open, and no more may be")
            expires_ms = now_ms + lifetime_ms
            entry = Entry(
                intent, new_key(), request.fingerprint, request, now_ms, expires_ms, key_form=key_form
            )
            self._open[intent] = entry
            return replace(entry, is_sent=False)

    def find(self, intent: str) -> Entry | None:
        with self._lock:
            return self._find(intent)

    def start(self, intent: str, key: str, key_form: str | None = None) -> Entry | None:
        with self._lock:
            return self._share(intent)

    def note(self, intent: str, key: str, note: Note) -> None:
        with self._lock:
            entry = self._open.get(intent)
            if entry is None or entry.key != key:
                return
            expires_ms = entry.expires_ms
            if note.expires_ms is not None:
                expires_ms = min(expires_ms, note.expires_ms)
            merged = Note(
                None,
                entry.note.is_unknown or note.is_unknown,
                note.operation_id or entry.note.operation_id,
            )
            self._open[intent] = replace(entry, expires_ms=expires_ms, note=merged)

    def finish(
        self,
        intent: str,
        key: str,
        response: StoredResponse,
        now_ms: int,
        unless_shared: bool = False,
    ) -> StoredResponse | None:
        with self._lock:
            entry = self._open.get(intent)
            if entry is not None and entry.key == key:
                if unless_shared and key in self._shared:
                    return None
                self._shared.discard(key)
                del self._open[intent]
                request = replace(entry.request, body=b"")
                finished = replace(entry, request=request, response=response)
                self._finished[intent] = now_ms, finished
                self._prune(now_ms)
                return response
            _, known = self._finished.get(intent, (0, None))
            if known is not None and known.key == key and known.response is not None:
                return known.response
            # Forgotten meanwhile, by a person.
            return response

    def list(self) -> list[OpenIntent]:
        with self._lock:
            return [open_intent(entry) for entry in self._open.values()]

    def forget(self, intent: str) -> bool:
        with self._lock:
            was_open = self._open.pop(intent, None)
            if was_open is not None:
                self._shared.discard(was_open.key)
            return (self._finished.pop(intent, None) or was_open) is not None

    def close(self) -> None:
        """There is nothing to close."""

    def _share(self, intent: str) -> Entry | None:
        if intent in self._open:
            self._shared.add(self._open[intent].key)
        return self._find(intent)

    def _find(self, intent: str) -> Entry | None:
        return self._open.get(intent) or self._finished.get(intent, (0, None))[1]

    def _prune(self, now_ms: int) -> None:
        oldest = itertools.islice(self._finished.items(), 10)
        for intent, (finished_ms, _) in list(oldest):
            if finished_ms + self._retention_ms <= now_ms:
                del self._finished[intent]
