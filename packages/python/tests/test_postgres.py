"""The journal in PostgreSQL; the database is that of `DATABASE_URL`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import httpx
import psycopg
import pytest
from api import Api
from test_client import refuses_after_fork

from semel.client import Client, IntentConflict, JournalError, JournalFull, Note, Request
from semel.client import StoredResponse
from semel.client.postgres import PostgresJournal, install, intend, intend_async

URL = os.environ.get("DATABASE_URL", "")
REQUEST = Request("POST", "http://127.0.0.1/", (("x-a", "b"),), b"\0order")
STORED = StoredResponse(201, (("content-type", "text/plain"),), b"\xffdone")
DAY_MS = 24 * 3600 * 1000
ORDER = {"amount": 1000}

pytestmark = pytest.mark.skipif(not URL, reason="SKIPPED: DATABASE_URL names no database")


@pytest.fixture
def database() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(URL) as connection:
        connection.execute("DROP TABLE IF EXISTS semel.intents, invoices CASCADE")
        install(connection)
        connection.execute("CREATE TABLE invoices (id text PRIMARY KEY)")
        connection.commit()
        yield connection


def test_the_intent_commits_with_the_row_that_caused_it(
    api: Api, database: psycopg.Connection[Any]
) -> None:
    credentials = {"Authorization": "Bearer rotated"}
    client = Client(PostgresJournal(URL), http=httpx.Client(headers=credentials))
    url = f"{api.url}/payments"
    for is_committed in (False, True):
        database.execute("INSERT INTO invoices VALUES ('7781')")
        headers = {"Authorization": "Bearer secret"}
        intend(database, "invoice-7781", "POST", url, json=ORDER, headers=headers)
        assert client.finish("invoice-7781") is None
        if is_committed:
            database.commit()
        else:
            database.rollback()
    assert api.requests == []
    stored = client.journal.find("invoice-7781")
    assert stored is not None and stored.key_form is None
    response = client.finish("invoice-7781")
    assert client.journal.find("invoice-7781") == replace(
        stored,
        is_sent=True,
        key_form='idempotency-key: "{key}"',
        expires_ms=ANY,
        request=replace(stored.request, body=b""),
        response=StoredResponse(201, ANY, ANY),
    )
    assert response is not None and response.json() == {"id": 1}
    again = client.call("invoice-7781", "POST", url, json=ORDER)
    assert again.replayed_from_journal
    assert len(api.requests) == 1
    # It was stored without its credentials, and is sent with those of the client.
    assert api.requests[0][2]["authorization"] == "Bearer rotated"
    with pytest.raises(IntentConflict):
        intend(database, "invoice-7781", "POST", url, json={"amount": 2})
    client.close()


def test_an_intent_of_an_asynchronous_transaction_is_resumed(
    api: Api, database: psycopg.Connection[Any]
) -> None:
    async def store() -> None:
        async with await psycopg.AsyncConnection.connect(URL) as connection:
            await intend_async(connection, "invoice-1", "POST", api.url, json=ORDER)

    asyncio.run(store())
    client = Client(PostgresJournal(URL))
    (report,) = client.resume()
    assert report.response is not None and report.response.status_code == 201
    assert client.journal.list() == []
    client.close()


def test_the_journal_keeps_the_first_entry_and_the_first_response(
    database: psycopg.Connection[Any],
) -> None:
    journal = PostgresJournal(URL, max_open=2)
    first = journal.intend("a", REQUEST, DAY_MS, 1000)
    assert first.request == REQUEST
    assert first.fingerprint == REQUEST.fingerprint
    assert first.expires_ms == 1000 + DAY_MS
    assert journal.intend("a", REQUEST, DAY_MS, 2000) == replace(first, is_sent=True)
    journal.note("a", first.key, Note(5000, True, "op-1"))
    (listed,) = journal.list()
    assert (listed.expires_ms, listed.is_unknown, listed.operation_id) == (5000, True, "op-1")
    # Another process found it.
    assert journal.finish("a", first.key, STORED, 3000, True) is None
    assert journal.finish("a", first.key, STORED, 3000) == STORED
    other = StoredResponse(500, (), None)
    assert journal.finish("a", first.key, other, 4000) == STORED
    assert journal.list() == []
    journal.intend("b", REQUEST, DAY_MS, 0)
    journal.intend("c", REQUEST, DAY_MS, 0)
    with pytest.raises(JournalFull):
        journal.intend("d", REQUEST, DAY_MS, 0)
    assert journal.forget("b")
    assert not journal.forget("b")
    assert journal.find("b") is None
    journal.close()


def test_threads_that_intend_at_once_get_one_key(database: psycopg.Connection[Any]) -> None:
    keys = []

    def run() -> None:
        journal = PostgresJournal(URL)
        keys.append(journal.intend("a", REQUEST, DAY_MS, 0).key)
        journal.close()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_a_journal_is_not_used_across_a_fork(database: psycopg.Connection[Any]) -> None:
    journal = PostgresJournal(URL)
    journal.intend("a", REQUEST, DAY_MS, 0)
    assert refuses_after_fork(journal)
    assert journal.find("a") is not None
    journal.close()


def test_a_row_of_another_intent_is_not_taken(
    database: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = PostgresJournal(URL)
    journal.intend("a", REQUEST, DAY_MS, 0)
    query = journal._query
    monkeypatch.setattr(journal, "_query", lambda sql, _: query(sql, ("a",)))
    with pytest.raises(JournalError, match="another intent"):
        journal.find("b")
    journal.close()


def test_a_connection_that_broke_is_replaced(database: psycopg.Connection[Any]) -> None:
    journal = PostgresJournal(URL + ("&" if "?" in URL else "?") + "application_name=journal")
    first = journal.intend("a", REQUEST, DAY_MS, 0)
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'journal'"
    )
    database.commit()
    assert journal.find("a") == replace(first, is_sent=True)
    journal.close()


def test_a_server_that_is_away_is_a_journal_error() -> None:
    journal = PostgresJournal("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(JournalError):
        journal.find("a")
