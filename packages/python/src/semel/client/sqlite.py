"""A journal in a local SQLite file, which clients in other languages can share."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from .attempts import Note
from .errors import IntentConflict, JournalError, JournalFull
from .journal import (
    MAX_OPEN,
    RETENTION_MS,
    Entry,
    OpenIntent,
    StoredResponse,
    check_process,
    new_key,
)
from .messages import Headers, Request
from .sql import statement

# "SEMJ"
_APPLICATION_ID = 0x53454D4A
_SCHEMA_VERSION = 1
# How long another process may hold the file: it writes a few rows at a time.
_BUSY_SECONDS = 10.0
_PRUNED_AT_ONCE = 10
_PAGE = 100
_NEVER_US = 2**63 - 1

_SCHEMA = statement("migrations", "sqlite.sql")
_INTEND = statement("queries", "sqlite", "intend.sql")
_FIND = statement("queries", "sqlite", "find.sql")
_SHARE = statement("queries", "sqlite", "share.sql")
_NOTE = statement("queries", "sqlite", "note.sql")
_FINISH = statement("queries", "sqlite", "finish.sql")
_LIST_OPEN = statement("queries", "sqlite", "list_open.sql")
_PRUNE = statement("queries", "sqlite", "prune.sql")
_FORGET = statement("queries", "sqlite", "forget.sql")


class SqliteJournal:
    """Safe with several threads and processes, and durable at every return.

    The file must be on a local disk: network file systems do not lock reliably. It holds requests and
    responses, so it is created for its owner alone. Open it after a fork, not before. Needs SQLite 3.37.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_open: int = MAX_OPEN,
        retention_ms: int = RETENTION_MS,
    ) -> None:
        self._max_open = max_open
        self._retention_ms = retention_ms
        self._lock = threading.Lock()
        self._pid = os.getpid()
        with _journal_errors():
            _create_private(Path(path))
            self._connection = _connect(path)

    def intend(
        self,
        intent: str,
        request: Request,
        lifetime_ms: int,
        now_ms: int,
        key_form: str | None = None,
    ) -> Entry:
        row = (
            intent,
            new_key(),
            request.fingerprint,
            request.method,
            request.url,
            json.dumps(request.headers),
            request.body,
            now_ms * 1000,
            (now_ms + lifetime_ms) * 1000,
            self._max_open,
            key_form,
        )
        with self._transaction() as connection:
            connection.execute(_SHARE, (intent,))
            known = _find(connection, intent)
            if known is None:
                if connection.execute(_INTEND, row).rowcount == 0:
                    raise JournalFull(f"{self._max_open} intents are open, and no more may be")
                known = _find(connection, intent)
                known = known and replace(known, is_sent=False)
            if known is None:
                raise JournalError("the intent vanished from the journal")
            if known.fingerprint != request.fingerprint:
                raise IntentConflict(intent)
            return known

    def find(self, intent: str) -> Entry | None:
        check_process(self._pid)
        with self._lock, _journal_errors():
            return _find(self._connection, intent)

    def start(self, intent: str, key: str, key_form: str | None = None) -> Entry | None:
        with self._transaction() as connection:
            connection.execute(_SHARE, (intent,))
            return _find(connection, intent)

    def note(self, intent: str, key: str, note: Note) -> None:
        expires_us = _NEVER_US if note.expires_ms is None else note.expires_ms * 1000
        row = (intent, key, expires_us, int(note.is_unknown), note.operation_id)
        with self._transaction() as connection:
            connection.execute(_NOTE, row)

    def finish(
        self,
        intent: str,
        key: str,
        response: StoredResponse,
        now_ms: int,
        unless_shared: bool = False,
    ) -> StoredResponse | None:
        headers = json.dumps(response.headers)
        row = (intent, key, now_ms * 1000, response.status, headers, response.body, int(unless_shared))
        before_us = (now_ms - self._retention_ms) * 1000
        with self._transaction() as connection:
            connection.execute(_FINISH, row)
            known = _find(connection, intent)
            connection.execute(_PRUNE, (before_us, _PRUNED_AT_ONCE))
        # Forgotten meanwhile, by a person.
        if known is None or known.key != key:
            return response
        return known.response

    def list(self) -> list[OpenIntent]:
        check_process(self._pid)
        found: list[OpenIntent] = []
        while True:
            after = found[-1].intent if found else None
            with self._lock, _journal_errors():
                page = self._connection.execute(_LIST_OPEN, (after, _PAGE)).fetchall()
            found.extend(open_from_row(row) for row in page)
            if len(page) < _PAGE:
                return found

    def forget(self, intent: str) -> bool:
        with self._transaction() as connection:
            return connection.execute(_FORGET, (intent,)).rowcount > 0

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        check_process(self._pid)
        with self._lock, _journal_errors(), _immediate(self._connection):
            yield self._connection


@contextmanager
def _journal_errors() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"the journal cannot be used: {error}") from error


@contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        # Not deferred: that fails at once where another process wrote in between.
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: str | os.PathLike[str]) -> sqlite3.Connection:
    # Transactions are written out: the module's implicit ones begin too late.
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        _use_write_ahead_log(connection)
        # A commit returns when the log is on the disk, not only in the system's cache.
        connection.execute("PRAGMA synchronous=FULL")
        with _immediate(connection):
            _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError:
            # Another process creates the file; SQLite does not wait for that itself.
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise JournalError(f"the file system does not support a write-ahead log ({mode})")
        return


def _migrate(connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (schema,) = connection.execute("PRAGMA schema_version").fetchone()
    if (application, version) == (_APPLICATION_ID, _SCHEMA_VERSION):
        return
    if application == _APPLICATION_ID:
        raise JournalError(
            f"the journal has version {version}, and this package knows {_SCHEMA_VERSION}"
        )
    if (application, version, schema) != (0, 0, 0):
        raise JournalError("the file is the database of another program")
    # One statement each: `executescript` would commit first.
    create = ""
    for line in _SCHEMA.splitlines(keepends=True):
        create += line
        if sqlite3.complete_statement(create):
            connection.execute(create)
            create = ""
    connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")


def _create_private(path: Path) -> None:
    """Creates the file for its owner alone, and makes its name durable."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _find(connection: sqlite3.Connection, intent: str) -> Entry | None:
    row = connection.execute(_FIND, (intent,)).fetchone()
    if row is None:
        return None
    headers, response_headers = row[5], row[12]
    parsed = [*row]
    parsed[5] = json.loads(headers)
    parsed[12] = None if response_headers is None else json.loads(response_headers)
    return entry_from_row(parsed)


def entry_from_row(row: list[Any], is_sent: bool = True) -> Entry:
    """An entry from the columns that `find.sql` names, with headers as lists of pairs."""
    intent, key, fingerprint, method, url, headers, body, created_us, expires_us = row[:9]
    is_unknown, operation_id, status, response_headers, response_body, key_form = row[9:]
    response = None
    if status is not None:
        kept = None if response_body is None else bytes(response_body)
        response = StoredResponse(status, _headers(response_headers), kept)
    return Entry(
        intent,
        key,
        bytes(fingerprint),
        Request(method, url, _headers(headers), bytes(body or b"")),
        created_us // 1000,
        expires_us // 1000,
        Note(None, bool(is_unknown), operation_id),
        is_sent,
        response,
        key_form,
    )


def open_from_row(row: tuple[Any, ...]) -> OpenIntent:
    intent, key, method, url, created_us, expires_us, is_unknown, operation_id = row
    return OpenIntent(
        intent,
        key,
        method,
        url,
        created_us // 1000,
        expires_us // 1000,
        bool(is_unknown),
        operation_id,
    )


def _headers(pairs: list[list[str]]) -> Headers:
    return tuple((name, value) for name, value in pairs)
