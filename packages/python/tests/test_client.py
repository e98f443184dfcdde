"""What the scenarios cannot say: journals, processes, transports and bounds."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from api import Api

import semel.client.exchange
from semel.client import (
    AsyncClient,
    AsyncTransport,
    CallError,
    CallResponse,
    Client,
    CredentialsMissing,
    Failure,
    ForeignOrigin,
    GaveUp,
    IntentConflict,
    Journal,
    JournalError,
    JournalFull,
    MemoryJournal,
    Options,
    Request,
    ResponseNotStored,
    Resumed,
    SqliteJournal,
    StoredResponse,
    Transport,
)

from semel.client.exchange import build_request
from semel.client.profile import parse_date_ms
from semel.client.url import serialize_url

PACKAGE = Path(__file__).parents[1]
PAY = PACKAGE / "examples" / "pay.py"
ORDER = '{"amount":1000}'
REQUEST = Request("POST", "http://127.0.0.1/payments", (), b"order")
STORED = StoredResponse(201, (("content-type", "text/plain"),), b"done")
DAY_MS = 24 * 3600 * 1000
# The quota ends a call at its first failure, without a delay.
ONE_ATTEMPT = Options(quota=semel.client.QuotaOptions(capacity=0))

MakeJournal = Callable[..., Journal]


@pytest.fixture(params=["sqlite", "memory"])
def new_journal(request: pytest.FixtureRequest, tmp_path: Path) -> MakeJournal:
    def make(**options: int) -> Journal:
        if request.param == "memory":
            return MemoryJournal(**options)
        return SqliteJournal(tmp_path / "journal.db", **options)

    return make


def no_sleep(_: float) -> None:
    pass


def pay(client: Client, api: Api, intent: str = "invoice-1", **arguments: Any) -> CallResponse:
    return client.call(intent, "POST", f"{api.url}/payments", json={"amount": 1000}, **arguments)


def test_the_key_is_in_the_file_when_the_request_arrives(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    seen = []

    def look(key: str) -> None:
        with sqlite3.connect(path) as connection:
            seen.append((key, *connection.execute("SELECT key FROM intents").fetchone()))

    api.on_request = look
    with Client(SqliteJournal(path)) as client:
        pay(client, api)
    assert len(seen) == 1
    assert seen[0][0] == f'"{seen[0][1]}"'


def test_a_journal_file_is_for_its_owner_and_without_credentials(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    api.fault = lambda _: 503
    with Client(SqliteJournal(path), options=ONE_ATTEMPT) as client:
        with pytest.raises(GaveUp):
            pay(client, api, headers={"Authorization": "Bearer secret", "X-Api-Key": "secret"})
        stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"secret" not in stored
        assert b'{"amount":1000}' in stored
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert api.requests[0][2]["authorization"] == "Bearer secret"


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    with pytest.raises(JournalError, match="another program"):
        SqliteJournal(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA application_id=0x53454D4A")
        connection.execute("PRAGMA user_version=2")
    with pytest.raises(JournalError, match="version 2"):
        SqliteJournal(path)


def test_the_first_entry_and_the_first_response_stay(new_journal: MakeJournal) -> None:
    journal = new_journal()
    first = journal.intend("a", REQUEST, DAY_MS, 1000)
    assert not first.is_sent
    first = replace(first, is_sent=True)
    assert journal.intend("a", REQUEST, DAY_MS, 2000) == first
    with pytest.raises(IntentConflict):
        journal.intend("a", Request("POST", REQUEST.url, (), b"other"), DAY_MS, 2000)
    # The response to another key, of an intent that was forgotten meanwhile, is not stored.
    journal.finish("a", "another key", STORED, 3000)
    assert [intent.key for intent in journal.list()] == [first.key]
    assert journal.finish("a", first.key, STORED, 3000) == STORED
    other = StoredResponse(500, (), None)
    assert journal.finish("a", first.key, other, 4000) == STORED
    found = journal.find("a")
    assert found is not None and found.response == STORED
    assert journal.list() == []


def test_a_response_may_end_only_an_intent_that_no_other_process_found(new_journal: MakeJournal) -> None:
    journal = new_journal()
    for is_resumed in (False, True):
        key = journal.intend("a", REQUEST, DAY_MS, 0).key
        journal.start("a", key) if is_resumed else journal.intend("a", REQUEST, DAY_MS, 0)
        assert journal.finish("a", key, STORED, 0, True) is None
        assert len(journal.list()) == 1
        assert journal.finish("a", key, STORED, 0) == STORED
        journal.forget("a")
    alone = journal.intend("b", REQUEST, DAY_MS, 0)
    assert journal.finish("b", alone.key, STORED, 0, True) == STORED


def test_connecting_takes_no_longer_than_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(semel.client.exchange, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lefts = []

    def connect_slowly(request: httpx.Request) -> httpx.Response:
        for event in ("connection.connect_tcp", "connection.start_tls", "http11.send_request_headers"):
            info = {"timeout": 30.0}
            now[0] += 11
            request.extensions["trace"](f"{event}.started", info)
            lefts.append(info["timeout"])
        raise AssertionError("sent")

    http = httpx.Client(transport=httpx.MockTransport(connect_slowly))
    with pytest.raises(GaveUp) as gave_up:
        Client(MemoryJournal(), http=http, options=ONE_ATTEMPT).call("a", "POST", "http://api.test/")
    assert isinstance(gave_up.value.last, Failure) and not gave_up.value.last.is_sent
    assert lefts == [19, 8]


def test_an_interrupt_after_the_begin_of_a_transaction_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(sqlite3.Connection):
        is_interrupting = False

        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *arguments)
            if sql.startswith("BEGIN") and Interrupted.is_interrupting:
                Interrupted.is_interrupting = False
                raise KeyboardInterrupt
            return cursor

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *path, **options: connect(*path, **options, factory=Interrupted)
    )
    journal = SqliteJournal(tmp_path / "journal.db")
    Interrupted.is_interrupting = True
    with pytest.raises(KeyboardInterrupt):
        journal.intend("a", REQUEST, DAY_MS, 0)
    assert not journal.intend("a", REQUEST, DAY_MS, 0).is_sent


def refuses_after_fork(journal: Journal) -> bool:
    child = os.fork()
    if child == 0:
        # Without the end of pytest.
        try:
            journal.close()
            for use in (journal.list, lambda: journal.find("a"), lambda: journal.forget("a")):
                with pytest.raises(JournalError, match="fork"):
                    use()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_a_journal_is_not_used_across_a_fork(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.intend("a", REQUEST, DAY_MS, 0)
    assert refuses_after_fork(journal)
    assert journal.find("a") is not None


@pytest.mark.parametrize("location", ["http://user@api.test/x", "/a b\x7f"])
def test_a_location_that_cannot_be_requested_is_not(location: str) -> None:
    sent: list[str] = []

    def accept_first(request: httpx.Request) -> httpx.Response:
        sent.append(f"{request.method} {request.url}")
        if len(sent) > 1:
            return httpx.Response(201)
        body = {"status": "in_progress", "operation_id": "op-1"}
        return httpx.Response(202, headers={"location": location}, json=body)

    http = httpx.Client(transport=httpx.MockTransport(accept_first))
    response = Client(MemoryJournal(), http=http, sleep=no_sleep).call("a", "POST", "http://api.test/")
    assert response.status_code in (201, 202)
    assert sent[1] in ("POST http://api.test/", "GET http://api.test/a%20b%7F")


def test_a_full_journal_refuses_new_intents_only(new_journal: MakeJournal) -> None:
    journal = new_journal(max_open=2)
    keys = [journal.intend(name, REQUEST, DAY_MS, 0).key for name in "ab"]
    with pytest.raises(JournalFull):
        journal.intend("c", REQUEST, DAY_MS, 0)
    assert journal.intend("b", REQUEST, DAY_MS, 0).key == keys[1]
    journal.finish("a", keys[0], STORED, 0)
    journal.intend("c", REQUEST, DAY_MS, 0)


def test_finished_intents_are_forgotten_after_their_retention(new_journal: MakeJournal) -> None:
    journal = new_journal(retention_ms=1000)
    keys = {name: journal.intend(name, REQUEST, DAY_MS, 0).key for name in "abc"}
    journal.finish("a", keys["a"], STORED, 0)
    journal.finish("b", keys["b"], STORED, 5000)
    assert journal.find("a") is None
    # An open intent stays, however old.
    assert [intent.intent for intent in journal.list()] == ["c"]
    found = journal.find("b")
    assert found is not None and found.response == STORED


def test_a_forgotten_intent_gets_a_new_key(new_journal: MakeJournal) -> None:
    journal = new_journal()
    first = journal.intend("a", REQUEST, DAY_MS, 0)
    assert journal.forget("a")
    assert not journal.forget("a")
    assert journal.find("a") is None
    assert journal.intend("a", REQUEST, DAY_MS, 0).key != first.key


def test_more_open_intents_than_a_page_are_listed_in_order(new_journal: MakeJournal) -> None:
    journal = new_journal()
    names = [f"intent-{number}" for number in range(250)]
    for name in names:
        journal.intend(name, REQUEST, DAY_MS, 0)
    assert [intent.intent for intent in journal.list()] == names


def test_what_cannot_be_sent_is_not_stored(api: Api) -> None:
    client = Client(MemoryJournal(), options=Options(max_request_bytes=4))
    refused: list[dict[str, Any]] = [
        {"intent": ""},
        {"intent": "x" * 256},
        {"intent": "a\0b"},
        {"headers": {"Idempotency-Key": "mine"}},
        {"content": b"12345"},
        {"url": "ftp://127.0.0.1/"},
        {"headers": {"x-note": "a\nb"}},
        {"headers": {"x note": "a"}},
        {"headers": {"x-note": "\u20ac"}},
        {"method": "P OST"},
        {"url": "/relative"},
    ]
    for changes in refused:
        arguments = {"intent": "a", "method": "POST", "url": api.url, **changes}
        with pytest.raises(ValueError):
            client.call(**arguments)
    assert client.journal.list() == []
    assert api.requests == []


def test_resume_sends_nothing_without_the_credentials_of_the_call(api: Api) -> None:
    journal = MemoryJournal()
    # Executed, and the response was lost. Then the process dies.
    api.fault = lambda _: "drop"
    client = Client(journal, options=ONE_ATTEMPT)
    with pytest.raises(GaveUp):
        pay(client, api, headers={"Authorization": "Bearer right"})
    api.fault = lambda _: None
    (report,) = Client(journal).resume()
    assert isinstance(report.error, CredentialsMissing)
    assert len(api.requests) == 1
    http = httpx.Client(headers={"Authorization": "Bearer right"})
    (report,) = Client(journal, http=http).resume()
    assert report.response is not None and report.response.status_code == 201
    assert api.requests[-1][2]["authorization"] == "Bearer right"
    assert len(api.payments) == 1
    assert journal.list() == []


def test_a_key_in_the_stored_headers_is_replaced(api: Api) -> None:
    journal = MemoryJournal()
    request = Request("POST", api.url, (("idempotency-key", '"theirs"'),))
    key = journal.intend("a", request, DAY_MS, time.time_ns() // 1_000_000).key
    Client(journal).finish("a")
    assert [sent for sent, _, _ in api.requests] == [f'"{key}"']


def test_credentials_go_only_to_the_origins_of_their_client() -> None:
    journal = MemoryJournal()
    for host in ("a.test", "b.test"):
        request = replace(REQUEST, url=f"https://{host}/payments")
        journal.intend(host, request, DAY_MS, time.time_ns() // 1_000_000)
    hosts = []

    def handle(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(201)

    def client(*origins: str) -> Client:
        http = httpx.Client(auth=("a", "secret"), transport=httpx.MockTransport(handle))
        return Client(journal, http=http, options=Options(origins=origins))

    async def resume_async() -> list[Resumed]:
        transport = httpx.MockTransport(handle)
        http = httpx.AsyncClient(headers={"X-Api-Key": "secret"}, transport=transport)
        return await AsyncClient(journal, http=http).resume()

    for reports in (client().resume(), asyncio.run(resume_async())):
        assert [type(report.error) for report in reports] == [ForeignOrigin, ForeignOrigin]
    of_a = client("https://a.test:443")
    with pytest.raises(ForeignOrigin):
        of_a.finish("b.test")
    assert hosts == []
    assert [report.intent for report in of_a.resume()] == ["a.test"]
    assert hosts == ["a.test"]
    assert [intent.intent for intent in journal.list()] == ["b.test"]


def test_a_response_that_is_too_long_to_be_read_is_not_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semel.client.exchange, "MAX_READ_BYTES", 5)
    client = Client(MemoryJournal())
    for _ in range(2):
        with pytest.raises(ResponseNotStored):
            pay(client, api)
    assert len(api.requests) == 1


def test_a_response_that_is_too_long_ends_an_intent_only_if_it_is_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(semel.client.exchange, "MAX_READ_BYTES", 5)
    statuses = [503, 201]
    http = httpx.Client(
        transport=httpx.MockTransport(lambda _: httpx.Response(statuses.pop(0), text="too long"))
    )
    client = Client(MemoryJournal(), http=http, sleep=no_sleep)
    with pytest.raises(ResponseNotStored):
        client.call("a", "POST", "http://api.test/")
    assert statuses == []


def test_resume_goes_on_after_an_intent_that_cannot_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    for intent in ("bad", "worse", "good"):
        journal.intend(intent, REQUEST, DAY_MS, time.time_ns() // 1_000_000)
    # Another program stored what no attempt can send.
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE intents SET url = 'ftp://api.test/' WHERE intent = 'bad'")
        headers = '[["x-note", "a\\nb"]]'
        connection.execute("UPDATE intents SET headers = ? WHERE intent = 'worse'", (headers,))
    api_server = Api()
    try:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE intents SET url = ? WHERE intent <> 'bad'", (api_server.url,))
        bad, worse, good = Client(journal, options=ONE_ATTEMPT).resume()
        assert isinstance(bad.error, httpx.UnsupportedProtocol)
        assert isinstance(worse.error, GaveUp)
        assert good.response is not None and good.response.status_code == 201

        async def resume_async() -> list[str]:
            async with AsyncClient(SqliteJournal(path), options=ONE_ATTEMPT) as client:
                return [report.intent for report in await client.resume()]

        assert asyncio.run(resume_async()) == ["bad", "worse"]
    finally:
        api_server.close()


def test_resume_finishes_several_intents_at_a_time() -> None:
    journal = MemoryJournal()
    names = [f"intent-{number}" for number in range(8)]
    for name in names:
        journal.intend(name, REQUEST, DAY_MS, time.time_ns() // 1_000_000)
    # It is passed when all of them wait at once.
    barrier = threading.Barrier(len(names), timeout=10)

    def handle(request: httpx.Request) -> httpx.Response:
        barrier.wait()
        return httpx.Response(201)

    http = httpx.Client(transport=httpx.MockTransport(handle))
    reports = Client(journal, http=http).resume()
    assert [report.intent for report in reports] == names
    assert all(report.response is not None for report in reports)


def test_tasks_resume_several_intents_at_a_time() -> None:
    journal = MemoryJournal()
    names = [f"intent-{number}" for number in range(8)]
    for name in names:
        journal.intend(name, REQUEST, DAY_MS, time.time_ns() // 1_000_000)

    async def run() -> list[str]:
        arrived = 0
        all_arrived = asyncio.Event()

        async def handle(request: httpx.Request) -> httpx.Response:
            nonlocal arrived
            arrived += 1
            if arrived == len(names):
                all_arrived.set()
            await asyncio.wait_for(all_arrived.wait(), 10)
            return httpx.Response(201)

        http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
        reports = await AsyncClient(journal, http=http).resume()
        return [report.intent for report in reports if report.response is not None]

    assert asyncio.run(run()) == names


def test_requests_have_the_fingerprints_of_the_file() -> None:
    file = PACKAGE.parent / "scenarios" / "fingerprints.json"
    vectors = json.loads(file.read_text(encoding="utf-8"))["fingerprints"]
    assert len(vectors) > 20
    for vector in vectors:
        body = vector.get("body", "").encode() or base64.b64decode(vector.get("body_base64", ""))
        kind = vector.get("content_type")
        headers = None if kind is None else {"Content-Type": kind}
        request = build_request(vector["method"], vector["url"], None, body, headers)
        assert request.url == vector["stored_url"], vector["name"]
        assert request.fingerprint.hex() == vector["fingerprint"], vector["name"]


def test_a_request_is_stored_with_bytes_of_its_own() -> None:
    http = httpx.Client(base_url="https://api.test/v1?x", params={"key": "a b"})
    body = {"name": "größe", "parts": [1, 2.5, None]}
    journal = MemoryJournal()
    with pytest.raises(CallError):
        Client(journal, http=http, options=Options(deadline_ms=0)).call("a", "post", "pay?n=1", json=body)
    stored = journal.find("a")
    assert stored is not None
    assert stored.request.method == "POST"
    assert stored.request.headers == (("content-type", "application/json"),)
    assert stored.request.body == '{"name":"größe","parts":[1,2.5,null]}'.encode()
    assert stored.request.url.endswith("n=1&key=a+b")


def test_the_request_that_is_sent_is_the_one_that_is_stored() -> None:
    sent: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        return httpx.Response(201)

    transport = httpx.MockTransport(handle)
    http = httpx.Client(params={"key": "a b"}, transport=transport)
    journal = MemoryJournal()
    Client(journal, http=http).call("a", "POST", "https://api.test/pay?n=1")
    stored = journal.find("a")
    assert stored is not None
    assert sent == [stored.request.url] == ["https://api.test/pay?n=1&key=a+b"]
    # An intent that another client stored.
    journal.intend("b", replace(REQUEST, url="http://api.test/?n=2"), DAY_MS, time.time_ns() // 1_000_000)
    Client(journal, http=http).resume()
    assert sent[1:] == ["http://api.test/?n=2"]


def test_a_content_type_is_no_credential() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    options = replace(ONE_ATTEMPT, secret_headers=frozenset({"content-type"}))
    client = Client(MemoryJournal(), http=httpx.Client(transport=transport), options=options)
    for _ in range(2):
        with pytest.raises(GaveUp):
            client.call("a", "POST", "https://api.test/", json={})


@pytest.mark.parametrize(
    "url",
    ["https://user:secret@api.test/", "https:///", "https://a b/", "https://a:99999/", "http://127.1/"],
)
def test_a_url_that_is_not_clear_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        serialize_url(url)


@pytest.mark.parametrize(
    "date",
    ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"],
)
def test_a_date_is_read_in_each_form(date: str) -> None:
    assert parse_date_ms(date) == 784_111_777_000


def test_what_is_no_date_is_not_read() -> None:
    for text in ("7", "", "06 Nov 1994", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 99 Nov 1994 08:49:37 GMT"):
        assert parse_date_ms(text) is None


def test_a_compressed_response_is_stored_decoded(tmp_path: Path) -> None:
    import gzip

    def handle(request: httpx.Request) -> httpx.Response:
        headers = {"content-encoding": "gzip", "content-type": "text/plain"}
        return httpx.Response(200, headers=headers, content=gzip.compress(b"paid"))

    http = httpx.Client(transport=httpx.MockTransport(handle))
    journal = SqliteJournal(tmp_path / "journal.db")
    for replayed in (False, True):
        response = Client(journal, http=http).call("a", "POST", "http://api.test/")
        assert response.text == "paid"
        assert response.replayed_from_journal is replayed


def test_a_call_that_is_cancelled_is_taken_over_by_the_one_that_waits(api: Api) -> None:
    api.fault = lambda number: 503 if number == 1 else None

    async def run() -> CallResponse:
        tasks: list[asyncio.Task[CallResponse]] = []

        async def cancel_first(_: float) -> None:
            tasks[0].cancel()
            await asyncio.sleep(0)

        client = AsyncClient(MemoryJournal(), sleep=cancel_first)
        for _ in range(2):
            tasks.append(asyncio.create_task(client.call("a", "POST", api.url)))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        return await tasks[1]

    response = asyncio.run(run())
    assert response.status_code == 201
    assert len(api.keys) == 1
    assert len(api.requests) == 2


def test_threads_that_call_one_intent_share_one_request(api: Api) -> None:
    gate = threading.Event()
    arrived = threading.Event()

    def hold(_: str) -> None:
        arrived.set()
        gate.wait(20)

    api.on_request = hold
    client = Client(MemoryJournal())
    responses: list[CallResponse] = []
    threads = [
        threading.Thread(target=lambda: responses.append(pay(client, api))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    assert arrived.wait(20)
    gate.set()
    for thread in threads:
        thread.join(20)
    assert [response.json() for response in responses] == [{"id": 1}] * 8
    assert len(api.requests) == 1


def test_a_transport_takes_the_intent_from_the_request(api: Api) -> None:
    journal = MemoryJournal()
    api.fault = lambda number: 503 if number == 1 else None
    http = httpx.Client(transport=Transport(journal, sleep=no_sleep))
    extensions = {"semel_intent": "invoice-1"}
    for _ in range(2):
        response = http.post(f"{api.url}/payments", json={"amount": 1}, extensions=extensions)
        assert response.json() == {"id": 1}
    assert len(api.requests) == 2
    assert len(api.keys) == 1


def test_a_transport_passes_other_requests_on(api: Api) -> None:
    http = httpx.Client(transport=Transport(MemoryJournal(), sleep=no_sleep))
    faults: dict[int, int | str] = {1: 503, 2: "drop", 3: 503}
    api.fault = faults.get
    assert http.post(api.url).status_code == 503
    with pytest.raises(httpx.RemoteProtocolError):
        http.post(api.url)
    assert http.get(api.url).status_code == 201
    assert len(api.requests) == 4
    # With a key of its own it is retried in this process.
    api.fault = lambda number: 503 if number == 5 else None
    headers = {"Idempotency-Key": '"mine"'}
    assert http.post(api.url, headers=headers).status_code == 201
    assert [key for key, _, _ in api.requests[4:]] == ['"mine"', '"mine"']


def test_an_asynchronous_transport_takes_the_intent_from_the_request(api: Api) -> None:
    async def run() -> None:
        transport = AsyncTransport(MemoryJournal())
        async with httpx.AsyncClient(transport=transport) as http:
            for _ in range(2):
                extensions = {"semel_intent": "invoice-1"}
                response = await http.post(api.url, extensions=extensions)
                assert response.json() == {"id": 1}

    asyncio.run(run())
    assert len(api.requests) == 1


def start_pay(api: Api, journal: Path, intent: str = "invoice-1") -> subprocess.Popen[str]:
    arguments = [sys.executable, str(PAY), f"{api.url}/payments", intent, str(journal), ORDER]
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_that_call_one_intent_at_once_send_one_key(api: Api, tmp_path: Path) -> None:
    for number in range(3):
        journal = tmp_path / f"journal-{number}.db"
        processes = [start_pay(api, journal, f"invoice-{number}") for _ in range(4)]
        answers = [process.communicate(timeout=60) for process in processes]
        assert {answer for answer, _ in answers} == {f'{{"id": {number + 1}}}\n'}, answers
    assert len(api.payments) == 3
    assert len(api.keys) == 3


def test_a_killed_process_ends_with_its_response_when_it_runs_again(
    api: Api, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEMEL_SEED", random.randrange(2**32)))
    print(f"SEMEL_SEED={seed}")
    chance = random.Random(seed)
    api.fault = lambda number: "drop" if number % 3 == 0 else None
    kills = 0
    intents = int(os.environ.get("SEMEL_KILLED_INTENTS", "6"))
    for number in range(1, intents + 1):
        # On a busy machine the process takes longer, so each run has more time than the one before.
        longest = 0.45
        while True:
            process = start_pay(api, tmp_path / "journal.db", f"invoice-{number}")
            # sleeps because the moment of the kill is what is tested
            time.sleep(chance.uniform(0.15, longest))
            longest *= 1.5
            process.kill()
            answer, problems = process.communicate(timeout=60)
            if process.returncode == 0:
                break
            kills += 1
            assert process.returncode == -9, problems
        assert answer == f'{{"id": {number}}}\n'
        assert len(api.payments) == number
    print(f"{kills} kills")
    assert len(api.keys) == intents


def test_the_lines_of_the_readme_work(api: Api, tmp_path: Path, capsys: Any) -> None:
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    lines = match[1].replace("https://api.example.com", api.url)
    lines = lines.replace("payments.db", str(tmp_path / "payments.db"))
    for _ in range(2):
        exec(compile(lines, "README.md", "exec"), {})
    assert capsys.readouterr().out == "201 {'id': 1}\n" * 2
    assert len(api.requests) == 1


def test_an_error_names_its_intent(api: Api) -> None:
    api.fault = lambda _: 503
    with pytest.raises(CallError) as raised:
        pay(Client(MemoryJournal(), options=ONE_ATTEMPT), api)
    assert raised.value.intent == "invoice-1"
    assert "status 503" in str(raised.value)
