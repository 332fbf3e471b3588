"""`pilotage subscriptions`, against a server that answers what the test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from pilotage.cli import main
from pilotage.model.states import State
from tests.kit.canned_server import Answer, Asked, CannedServer, canned_server

SUBSCRIPTION = {
    "id": "s1",
    "target": "packages",
    "query": "site=lyon",
    "states": ["RUNNING"],
    "attributes": ["node"],
    "transport": "webhook",
    "address": "https://there/hook",
    "created_at": 1.7e9,
    "expires_at": 1.7e9 + 7200,
    "tries": 2,
    "next_at": None,
    "fault": "HTTP 500\x1b",
}


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CannedServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    with canned_server() as server:
        monkeypatch.setenv("PILOTAGE_SERVER", server.url)
        yield server


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, ["subscriptions", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_subscription_is_asked_for_as_said(canned: CannedServer, tmp_path: Path) -> None:
    canned.answer("/v1/subscriptions", {"subscription": SUBSCRIPTION, "secret": "sec"}, status=201)
    (tmp_path / "secret").write_text("a secret of mine\n")
    result = run(
        *("add", "site=lyon", "--jobs", "--state", "DONE", "--state", "ABORTED", "--attribute", "node"),
        *("--valid", "90m", "--webhook", "https://there/hook", "--secret-file", "secret"),
    )
    assert (result.exit_code, result.stdout, result.stderr) == (0, "s1\n", "until 2023-11-15 00:13:20Z\n")
    assert canned.asked[0].body == {
        "query": "site=lyon",
        "target": "jobs",
        "states": ["DONE", "ABORTED"],
        "attributes": ["node"],
        "validity_seconds": 5400.0,
        "transport": "webhook",
        "address": "https://there/hook",
        "secret": "a secret of mine",
    }


def test_a_secret_that_was_made_up_is_shown_once(canned: CannedServer) -> None:
    canned.answer("/v1/subscriptions", {"subscription": SUBSCRIPTION, "secret": "made-up"}, status=201)
    assert "not shown again: made-up" in run("add", "--webhook", "https://there").stderr
    assert "made-up" not in run("add").stderr
    assert json.loads(run("add", "--json").stdout)["secret"] == "made-up"
    assert canned.asked[1].body["transport"] == "poll"


@pytest.mark.parametrize(
    "span, seconds", [("30s", 30.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), ("1w", 604800.0)]
)
def test_a_time_span_has_a_unit(canned: CannedServer, span: str, seconds: float) -> None:
    canned.answer("/v1/subscriptions/s1/refresh", SUBSCRIPTION)
    assert run("refresh", "s1", "--valid", span).exit_code == 0
    assert canned.asked[0].body == {"validity_seconds": seconds}


@pytest.mark.parametrize("span", ["", "2", "h", "2y", "-1h", "0m", "1h30m"])
def test_what_is_no_time_span_is_refused(canned: CannedServer, span: str) -> None:
    result = run("refresh", "s1", "--valid", span)
    assert (result.exit_code, "not a duration" in result.stderr) == (2, True)


def test_subscriptions_are_listed(canned: CannedServer) -> None:
    every = SUBSCRIPTION | {"id": "s2", "query": "", "states": [state.value for state in State], "attributes": []}
    canned.answer("/v1/subscriptions", {"subscriptions": [SUBSCRIPTION, every]})
    rows = [line.split("  ") for line in run("list").stdout.splitlines()]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows[1:]] == [
        [
            "s1",
            "packages",
            "site=lyon",
            "RUNNING, node",
            "webhook https://there/hook",
            "2023-11-15 00:13:20Z",
            "HTTP 500\ufffd",
        ],
        ["s2", "packages", "all", "state", "webhook https://there/hook", "2023-11-15 00:13:20Z", "HTTP 500\ufffd"],
    ]
    canned.answer("/v1/subscriptions", {"subscriptions": []})
    assert run("list").stderr == "no subscriptions\n"


def test_one_that_cannot_be_dropped_does_not_keep_the_others(canned: CannedServer) -> None:
    canned.refuse("/v1/subscriptions/bad", 404, "unknown_subscription", "there is no such subscription")
    canned.answer("/v1/subscriptions/good", b"", status=204)
    result = run("drop", "bad", "good")
    assert (result.exit_code, result.stderr) == (2, "error: there is no such subscription\n")
    assert [asked.path for asked in canned.asked] == ["/v1/subscriptions/bad", "/v1/subscriptions/good"]


def test_a_subscription_without_its_quotes_is_told(canned: CannedServer) -> None:
    assert "Put the query in quotes" in run("add", "state=DONE", "and", "site=lyon").stderr
    assert "--packages and --jobs exclude each other" in run("add", "--jobs", "--packages").stderr
    assert canned.asked == []


def test_subscriptions_are_dropped_and_bound_elsewhere(canned: CannedServer) -> None:
    canned.answer("/v1/subscriptions/s1", b"", status=204)
    assert run("drop", "s1").exit_code == 0
    canned.answer("/v1/subscriptions/s1", SUBSCRIPTION)
    assert run("rebind", "s1", "--mail", "anna@there").exit_code == 0
    assert run("rebind", "s1").exit_code == 0
    assert [asked.method for asked in canned.asked] == ["DELETE", "PATCH", "PATCH"]
    assert canned.asked[1].body == {"transport": "mail", "address": "anna@there", "secret": ""}
    assert canned.asked[2].body == {"transport": "poll", "address": "", "secret": ""}
    assert run("rebind", "s1", "--mail", "a@b", "--webhook", "https://there").exit_code == 2


def notice(number: str, **data: Any) -> dict[str, Any]:
    return {
        "id": number,
        "type": "io.pilotage.package.state",
        "subject": "jobs/j/packages/1.2.1",
        "time": "2023-11-14T22:13:20.500000Z",
        "data": {"state": "RUNNING", "state_before": "READY", "changed": ["state"]} | data,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_was_shown_is_acknowledged_when_following_ends(
    canned: CannedServer, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    notices = [notice("4.1", site="lyon", node=None), notice("5.1", changed=["state", "attempts"], attempts=2)]

    def respond(asked: Asked) -> Answer:
        if asked.parameters.get("limit") == "1":
            return Answer({"notices": [], "after": asked.parameters["after"], "more": False})
        waiting = [each for each in notices if each["id"] > asked.parameters.get("after", "")]
        text = b"".join(b"id: x\ndata: %s\n\n" % msgspec.json.encode(each) for each in waiting[:1])
        return Answer(b"retry: 2000\n\n" + text, hang_up=True)

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", pause)
    canned.responders["/v1/subscriptions/s1/notices"] = respond
    result = run("follow", "s1", *(["--json"] if form == "json" else []))
    assert (result.exit_code, result.stderr) == (130, "")
    if form == "json":
        assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["4.1", "5.1"]
    else:
        assert result.stdout.splitlines() == [
            "2023-11-14 22:13:20Z  j/1.2.1  READY → RUNNING  site=lyon",
            "2023-11-14 22:13:20Z  j/1.2.1  READY → RUNNING  attempts=2",
        ]
    assert [asked.parameters for asked in canned.asked] == [{}, {"after": "4.1"}, {"after": "5.1", "limit": "1"}]


def test_following_may_end_after_as_many(canned: CannedServer) -> None:
    text = b"".join(b"data: %s\n\n" % msgspec.json.encode(notice(f"{n}.1")) for n in (1, 2, 3))
    canned.responders["/v1/subscriptions/s1/notices"] = lambda asked: (
        Answer({}) if "limit" in asked.parameters else Answer(text, hang_up=True)
    )
    result = run("follow", "s1", "--limit", "2", "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert canned.asked[-1].parameters["after"] == "2.1"
