"""The scenarios that the clients in all languages run, with threads and with tasks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_server import PATIENCE_SECONDS, ScriptedServer, expected_body

from semel.client import (
    IETF,
    STRIPE,
    AsyncClient,
    CallError,
    CallResponse,
    Client,
    Failed,
    GaveUp,
    IntentConflict,
    Journal,
    KeyExpired,
    KeyReused,
    MemoryJournal,
    Options,
    OutcomeUnknown,
    QuotaOptions,
    ResponseNotStored,
    Resumed,
    SqliteJournal,
)

SCENARIOS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "scenarios" / "client.json").read_text(encoding="utf-8")
)["scenarios"]
PROFILES = {"ietf": IETF, "stripe": STRIPE}


class Scenario:
    """What a scenario needs besides its client: clock, server and the delays so far."""

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.now_ms = 1_800_000_000_000
        self.delays_ms: list[int] = []
        self.oversleep_ms = 0
        # The last call.
        self.called: dict[str, Any] = {}
        self.server = ScriptedServer(script["profile"], lambda: self.now_ms)
        options = dict(script.get("client", {}))
        if "quota" in options:
            options["quota"] = QuotaOptions(**options["quota"])
        self.options = Options(
            profile=PROFILES[script["profile"]],
            clock=lambda: self.now_ms,
            random=lambda: 1.0,
            # The order of the requests is part of a scenario.
            resume_at_once=1,
            **options,
        )

    def sleep(self, seconds: float) -> None:
        delay_ms = round(seconds * 1000)
        self.delays_ms.append(delay_ms)
        self.now_ms += delay_ms + self.oversleep_ms
        self.oversleep_ms = 0
        self.server.on_sleep()

    def options_after(self, restart: dict[str, Any] | None) -> Options:
        profile = (restart or {}).get("profile", self.script["profile"])
        return replace(self.options, profile=PROFILES[profile])

    def set_meanwhile(self, journal: Journal) -> None:
        """While the server has a request, time passes, and another process may find its intent."""

        def refuse(_: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("unreachable")

        http = httpx.Client(transport=httpx.MockTransport(refuse))
        options = replace(self.options, quota=QuotaOptions(capacity=0))
        another = Client(journal, http=http, options=options)

        def meanwhile(respond: dict[str, Any]) -> None:
            self.now_ms += respond.get("takes_ms", 0)
            if "found_by_another" in respond:
                with pytest.raises(GaveUp):
                    another.call(**self.called)

        self.server.meanwhile = meanwhile

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def begin(self, step: dict[str, Any]) -> None:
        self.delays_ms = []
        self.oversleep_ms = step.get("oversleep_ms", 0)
        self.server.begin(step.get("exchanges", []))

    def end(self, step: dict[str, Any]) -> None:
        self.server.end()
        assert self.server.problems == []
        assert self.delays_ms == step.get("delays_ms", [])

    def arguments(self, call: dict[str, Any]) -> dict[str, Any]:
        self.called = {
            "intent": call.get("intent"),
            "method": call["method"],
            "url": self.server.url + call["path"],
            "content": expected_body(call),
            "headers": call.get("headers"),
        }
        return self.called


def compare(expected: dict[str, Any], result: CallResponse | Exception, is_alone: bool) -> None:
    kind = expected["kind"]
    if kind == "response":
        assert isinstance(result, CallResponse), result
        assert result.status_code == expected["status"]
        assert result.text == expected["body"]
        if is_alone:
            assert result.replayed_from_journal == expected.get("replayed_from_journal", False)
        return
    classes = {
        "unknown": OutcomeUnknown,
        "key_reused": KeyReused,
        "key_expired": KeyExpired,
        "response_not_stored": ResponseNotStored,
        "gave_up": GaveUp,
        "intent_conflict": IntentConflict,
        "failed": Failed,
    }
    assert type(result) is classes[kind], result
    if isinstance(result, OutcomeUnknown):
        assert result.operation_id == expected["operation_id"]
    if isinstance(result, ResponseNotStored) and result.response is not None:
        # Where the journal does not have it.
        status = None if result.response.body else result.response.status
        assert status == expected.get("status")
    if isinstance(result, GaveUp):
        assert result.reason == expected["reason"]


def compare_resumed(expected: dict[str, Any], reports: list[Resumed]) -> None:
    assert [report.intent for report in reports] == list(expected)
    for report in reports:
        result = report.response or report.error
        assert result is not None
        compare(expected[report.intent], result, is_alone=True)


@pytest.mark.parametrize("script", SCENARIOS, ids=lambda script: str(script["name"]))
def test_scenario_with_threads(script: dict[str, Any], tmp_path: Path) -> None:
    scenario = Scenario(script)
    http = httpx.Client()

    def start(step: dict[str, Any] | None = None) -> Client:
        journal = SqliteJournal(tmp_path / "journal.db")
        options = scenario.options_after(step)
        return Client(journal, http=http, options=options, sleep=scenario.sleep)

    def call(client: Client, arguments: dict[str, Any]) -> CallResponse | CallError:
        try:
            return client.call(**arguments)
        except CallError as error:
            return error

    client = start()
    scenario.set_meanwhile(SqliteJournal(tmp_path / "journal.db"))
    try:
        for step in script["steps"]:
            if "restart" in step:
                client.close()
                client = start(step)
                continue
            if "advance_ms" in step:
                scenario.now_ms += step["advance_ms"]
                continue
            scenario.begin(step)
            if "resume" in step:
                compare_resumed(step["results"], client.resume())
            elif "calls" in step:
                calls = [scenario.arguments(one) for one in step["calls"]]
                results = concurrently(scenario, lambda one: call(client, one), calls)
                for expected, result in zip(step["results"], results, strict=True):
                    compare(expected, result, is_alone=False)
            else:
                result = call(client, scenario.arguments(step["call"]))
                compare(step["result"], result, is_alone=True)
            scenario.end(step)
    finally:
        client.close()
        http.close()
        scenario.server.close()


def concurrently(
    scenario: Scenario,
    call: Callable[[dict[str, Any]], CallResponse | CallError],
    calls: list[dict[str, Any]],
) -> list[CallResponse | CallError]:
    """The first call has sent its request when the others begin."""
    results: list[CallResponse | CallError | None] = [None] * len(calls)

    def run(index: int) -> None:
        results[index] = call(calls[index])

    server = scenario.server
    server.gate.clear()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    threads[0].start()
    assert server.received.wait(PATIENCE_SECONDS)
    for thread in threads[1:]:
        thread.start()
    server.gate.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    return [result for result in results if result is not None]


@pytest.mark.parametrize("script", SCENARIOS, ids=lambda script: str(script["name"]))
def test_scenario_with_tasks(script: dict[str, Any]) -> None:
    asyncio.run(run_with_tasks(script, MemoryJournal()))


async def run_with_tasks(script: dict[str, Any], journal: Journal) -> None:
    scenario = Scenario(script)
    http = httpx.AsyncClient()

    def start(step: dict[str, Any] | None = None) -> AsyncClient:
        options = scenario.options_after(step)
        return AsyncClient(journal, http=http, options=options, sleep=scenario.sleep_async)

    async def caught(response: Awaitable[CallResponse]) -> CallResponse | CallError:
        try:
            return await response
        except CallError as error:
            return error

    client = start()
    scenario.set_meanwhile(journal)
    try:
        for step in script["steps"]:
            if "restart" in step:
                client = start(step)
                continue
            if "advance_ms" in step:
                scenario.now_ms += step["advance_ms"]
                continue
            scenario.begin(step)
            if "resume" in step:
                compare_resumed(step["results"], await client.resume())
            elif "calls" in step:
                calls = [caught(client.call(**scenario.arguments(one))) for one in step["calls"]]
                results = await asyncio.gather(*calls)
                for expected, result in zip(step["results"], results, strict=True):
                    compare(expected, result, is_alone=False)
            else:
                result = await caught(client.call(**scenario.arguments(step["call"])))
                compare(step["result"], result, is_alone=True)
            scenario.end(step)
    finally:
        await http.aclose()
        scenario.server.close()
