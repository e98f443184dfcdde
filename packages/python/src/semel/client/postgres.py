"""The journal in the application's PostgreSQL, through psycopg 3.

The intent commits with the row that caused it:

```python
with psycopg.connect(url) as connection:
    connection.execute("INSERT INTO invoices …")
    intend(connection, "invoice-7781", "POST", "https://api.example/payments", json={"amount": 1000})
client.finish("invoice-7781")
```

If the process dies after the commit, `resume` sends the request in another one. If the transaction is
rolled back, nothing is sent. Needs psycopg 3.2 and the schema of `install`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import TupleRow, tuple_row
from psycopg.types.json import Jsonb

from .attempts import Note
from .engine import Options
from .errors import IntentConflict, JournalError, JournalFull
from .exchange import build_request
from .journal import MAX_OPEN, RETENTION_MS, Entry, OpenIntent, StoredResponse, check_process
from .messages import Request, mask_headers
from .sql import statement
from .sqlite import entry_from_row, open_from_row

_SCHEMA = statement("migrations", "postgres.sql")
_INTEND = statement("queries", "postgres", "intend.sql")
_FIND = statement("queries", "postgres", "find.sql")
_START = statement("queries", "postgres", "start.sql")
_NOTE = statement("queries", "postgres", "note.sql")
_FINISH = statement("queries", "postgres", "finish.sql")
_LIST_OPEN = statement("queries", "postgres", "list_open.sql")
_FORGET = statement("queries", "postgres", "forget.sql")

# What `semel.intend` raises where the intent is known with another request, and where too many are open.
_CONFLICT = "SEM03"
_FULL = "SEM04"
_PAGE = 100
# The names of the columns, and the rows.
_Answer = tuple[list[str], list[TupleRow]]
_NEVER_US = 2**63 - 1
# In the order of `entry_from_row`.
_COLUMNS = (
    "intent",
    "key",
    "fingerprint",
    "method",
    "url",
    "headers",
    "body",
    "created_at",
    "expires_at",
    "is_unknown",
    "operation_id",
    "status",
    "response_headers",
    "response_body",
    "key_form",
)


def install(connection: psycopg.Connection[Any]) -> None:
    """Creates the tables and functions in the schema `semel`; safe to run again. The caller commits."""
    connection.execute(_SCHEMA.encode())


def intend(
    connection: psycopg.Connection[Any],
    intent: str,
    method: str,
    url: str,
    *,
    json: Any = None,
    content: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> None:
    """Stores an intent in the open transaction of `connection`. Credentials are not stored."""
    parameters = _parameters(intent, method, url, json, content, headers, options)
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    try:
        cursor.execute(_INTEND.encode(), parameters)
    except psycopg.Error as error:
        raise _translated(error, intent) from error


async def intend_async(
    connection: psycopg.AsyncConnection[Any],
    intent: str,
    method: str,
    url: str,
    *,
    json: Any = None,
    content: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> None:
    """See `intend`."""
    parameters = _parameters(intent, method, url, json, content, headers, options)
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    try:
        await cursor.execute(_INTEND.encode(), parameters)
    except psycopg.Error as error:
        raise _translated(error, intent) from error


class PostgresJournal:
    """Safe with several threads and processes. Opens a connection of its own, after a fork and not before."""

    def __init__(
        self, conninfo: str, *, max_open: int = MAX_OPEN, retention_ms: int = RETENTION_MS
    ) -> None:
        self._conninfo = conninfo
        self._max_open = max_open
        self._retention_ms = retention_ms
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: psycopg.Connection[TupleRow] | None = None

    def intend(
        self,
        intent: str,
        request: Request,
        lifetime_ms: int,
        now_ms: int,
        key_form: str | None = None,
    ) -> Entry:
        row = _row(intent, request, lifetime_ms, self._max_open, now_ms * 1000, True)
        parameters = (*row, key_form)
        entry = self._entry(_INTEND, parameters)
        if entry is None:
            raise JournalError("the intent vanished from the journal")
        return entry

    def find(self, intent: str) -> Entry | None:
        return self._entry(_FIND, (intent,))

    def start(self, intent: str, key: str, key_form: str | None = None) -> Entry | None:
        return self._entry(_START, (intent, key, key_form))

    def note(self, intent: str, key: str, note: Note) -> None:
        expires_us = _NEVER_US if note.expires_ms is None else note.expires_ms * 1000
        self._query(_NOTE, (intent, key, expires_us, note.is_unknown, note.operation_id))

    def finish(
        self,
        intent: str,
        key: str,
        response: StoredResponse,
        now_ms: int,
        unless_shared: bool = False,
    ) -> StoredResponse | None:
        parameters = (
            intent,
            key,
            response.status,
            Jsonb(response.headers),
            response.body,
            (now_ms - self._retention_ms) * 1000,
            now_ms * 1000,
            unless_shared,
        )
        entry = self._entry(_FINISH, parameters)
        # Forgotten meanwhile, by a person.
        return response if entry is None else entry.response

    def list(self) -> list[OpenIntent]:
        found: list[OpenIntent] = []
        while True:
            after = found[-1].intent if found else None
            _, page = self._query(_LIST_OPEN, (after, _PAGE))
            found.extend(open_from_row(row) for row in page)
            if len(page) < _PAGE:
                return found

    def forget(self, intent: str) -> bool:
        _, rows = self._query(_FORGET, (intent,))
        return bool(rows[0][0])

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _entry(self, sql: str, parameters: tuple[Any, ...]) -> Entry | None:
        names, rows = self._query(sql, parameters)
        row = dict(zip(names, rows[0], strict=True)) if rows else {}
        # A function that returns no row returns one of nulls.
        if row.get("intent") is None:
            return None
        if row["intent"] != parameters[0]:
            raise JournalError("the journal answered about another intent")
        return entry_from_row([row[name] for name in _COLUMNS], bool(row["is_sent"]))

    def _query(self, sql: str, parameters: tuple[Any, ...]) -> _Answer:
        check_process(self._pid)
        intent = str(parameters[0])
        with self._lock:
            try:
                return self._query_once(sql, parameters)
            except psycopg.OperationalError as error:
                if self._connection is not None and not self._connection.closed:
                    raise _translated(error, intent) from error
            except psycopg.Error as error:
                raise _translated(error, intent) from error
            # The connection broke. Each statement may be repeated.
            self._connection = None
            try:
                return self._query_once(sql, parameters)
            except psycopg.Error as error:
                raise _translated(error, intent) from error

    def _query_once(self, sql: str, parameters: tuple[Any, ...]) -> _Answer:
        if self._connection is None:
            # Each statement commits by itself.
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
        cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        cursor.execute(sql.encode(), parameters)
        names = [column.name for column in cursor.description or ()]
        return names, cursor.fetchall()


def _parameters(
    intent: str,
    method: str,
    url: str,
    json: Any,
    content: bytes | str | None,
    headers: Mapping[str, str] | None,
    options: Options | None,
) -> tuple[Any, ...]:
    options = options or Options()
    request = build_request(method, url, json, content, headers)
    kept = mask_headers(request.headers, options.secret_headers)
    stored = Request(request.method, request.url, kept, request.body)
    # The client that sends it first fixes the form of its key.
    return (*_row(intent, stored, options.key_lifetime_ms, MAX_OPEN, None, False), None)


def _row(
    intent: str,
    request: Request,
    lifetime_ms: int,
    max_open: int,
    now_us: int | None,
    is_sending: bool,
) -> tuple[Any, ...]:
    sent = request.method, request.url, Jsonb(request.headers), request.body
    return (intent, *sent, lifetime_ms / 1000, max_open, now_us, is_sending)


def _translated(error: psycopg.Error, intent: str) -> Exception:
    if error.sqlstate == _CONFLICT:
        return IntentConflict(intent)
    if error.sqlstate == _FULL:
        return JournalFull(str(error))
    return JournalError(f"the journal cannot be used: {error}")
