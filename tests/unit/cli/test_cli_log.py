"""`pilotage log`, `tag` and `courier`: words that become events, and events that reach a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.agent_server import AgentServer, agent_server
from tests.kit.command_line import in_an_empty_folder, refused, run

MOMENT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_an_empty_folder(tmp_path, monkeypatch)


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentServer]:
    with agent_server() as server:
        monkeypatch.setenv("PILOTAGE_SERVER", server.url)
        yield server


# --- log and tag ------------------------------------------------------------------------------------------------------


def only_event(keeper: AgentServer) -> dict[str, Any]:
    (event,) = keeper.events.values()
    return event


def test_an_event_is_logged_with_its_fields_as_their_types(keeper: AgentServer) -> None:
    result = run(
        *("log", "AttemptFinished", "--job", "j", "--package", "1.2.1", "--attempt", "3", "--time", "12.5"),
        *("exit_code=SUCCESS", "exit_status=0", "cpu_seconds=1.5", "node=n17", "exit_message=007"),
    )
    assert (result.exit_code, result.output) == (0, "")
    event = only_event(keeper)
    assert {name: event[name] for name in ("source", "type", "job", "package", "attempt", "time")} == {
        "source": "application",
        "type": "AttemptFinished",
        "job": "j",
        "package": "1.2.1",
        "attempt": 3,
        "time": 12.5,
    }
    assert event["data"] == {
        "exit_code": "SUCCESS",
        "exit_status": 0,
        "cpu_seconds": 1.5,
        "node": "n17",
        "exit_message": "007",
    }


def test_a_field_may_be_json_and_a_text_may_look_like_it(keeper: AgentServer) -> None:
    stages = '[{"templates":[{"lines":2,"activities":["a"]}]}]'
    assert run("log", "JobRegistered", "--job", "j", "owner=o", "name=[n]", f"stages={stages}").exit_code == 0
    data = only_event(keeper)["data"]
    assert (data["name"], data["stages"]) == ("[n]", json.loads(stages))


def test_data_may_come_from_standard_input(keeper: AgentServer) -> None:
    assert run("log", "JobRegistered", "--job", "j", "owner=o", "--data", "-", stdin='{"name": "n"}').exit_code == 0
    assert only_event(keeper)["data"] == {"owner": "o", "name": "n"}


def test_a_running_package_knows_what_it_is(keeper: AgentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"PILOTAGE_JOB": "j", "PILOTAGE_PACKAGE": "1.2.1", "PILOTAGE_ATTEMPT": "2", "PILOTAGE_EPOCH": "3"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert run("log", "PhaseEntered", "phase=application").exit_code == 0
    assert run("log", "OwnerSet", "owner=x").exit_code == 0
    assert run("tag", "study=A12", "colour=dark blue").exit_code == 0
    phase, owner, study, colour = keeper.events.values()
    assert (phase["job"], phase["package"], phase["attempt"], phase["epoch"]) == ("j", "1.2.1", 2, 3)
    assert (owner["job"], owner.get("package"), owner["epoch"]) == ("j", None, 3)
    for event, data in ((study, {"name": "study", "value": "A12"}), (colour, {"name": "colour", "value": "dark blue"})):
        assert (event["package"], event.get("attempt"), event["epoch"], event["data"]) == ("1.2.1", None, 3, data)
        assert event["source"] == "application"


@pytest.mark.parametrize(
    "target, package", [("j", None), ("j/1.2.1", "1.2.1"), ("j/001/020/001", "1.20.1")], ids=["job", "short", "path"]
)
def test_a_job_or_a_package_is_tagged_by_hand(keeper: AgentServer, target: str, package: str | None) -> None:
    assert run("tag", "study=A=12", target).exit_code == 0
    event = only_event(keeper)
    assert (event["source"], event["job"], event.get("package")) == ("client", "j", package)
    assert event["data"] == {"name": "study", "value": "A=12"}


@pytest.mark.parametrize(
    "words, told",
    [
        (("log", "AttemptStartet", "--job", "j"), "did you mean 'AttemptStarted'?"),
        (("log", "Noted", "txt=x", "--job", "j"), "Noted has no field 'txt' (did you mean 'text'?); text is missing"),
        (("log", "Noted", "text", "--job", "j"), "expected NAME=VALUE"),
        (("log", "Noted", "text=a", "text=b"), "text: this field is given twice"),
        (("log", "Noted", "text=a", "--data", '{"text":"b"}'), "text is in --data, too"),
        (("log", "Noted", "--data", "[1]"), "--data is not a JSON object"),
        (("log", "AttemptStarted", "--job", "j"), "expected --job, --package and --attempt, got job j"),
        (("log", "JobAccepted"), "the event has no subject"),
        (("log", "CommitGranted", "--job", "j", "--package", "1.1.1", "--attempt", "1"), "expected --source service"),
        (
            ("log", "AttemptStarted", "--job", "j", "--package", "1-1", "--attempt", "1"),
            "'1-1' is not the number of a package",
        ),
        (("log", "Noted", "text=x", "--job", "j", "--package", "1.2"), "write 1.2.1, 001/002/001 or JOB/1.2.1"),
        (("log", "Noted", "text=x", "--package", "001/002/001"), "of which job? Use --job ID, or --package JOB/1.2.1"),
        (("log", "Noted", "text=x", "--job", "k", "--package", "j/1.2.1"), "name different jobs"),
        (("log", "Held", "--source", "service", "--job", "j", "operation=-1"), "expected a whole number >= 0"),
        (("log", "Held", "--source", "service", "--job", "j", "operation=x"), "expected a whole number, got text"),
        (
            ("log", "AttemptFinished", "--job", "j", "--package", "1.1.1", "--attempt", "1", "exit_code=OK"),
            "exit_code: 'OK' is none of SUCCESS, ERROR_READ_GRID",
        ),
        (("tag", "j"), "Name a tag"),
        (("tag", "a=b"), "Name the job or package"),
        (("tag", "a=b", "j", "k"), "not 2: j, k"),
        (("tag", "1a=b", "j"), "not the name of a tag"),
        (("tag", "a=b", "j/1.2"), "is not the number of a package"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_words_that_make_no_event_are_refused_before_anything_is_kept(
    keeper: AgentServer, words: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    assert told in refused(*words)
    assert not keeper.events
    assert not (tmp_path / "spool").exists()


def test_a_word_that_is_none_is_answered_with_the_one_that_was_meant() -> None:
    told = refused("log", "AttemptFinished", "--job", "j", "--package", "1.1.1", "--attempt", "1", "exit_code=success")
    assert "(did you mean 'SUCCESS'?)" in told
    assert "missing" not in told


@pytest.mark.parametrize("words", [("j/1.2.1",), ("j/001/002/001",), ("001/002/001", "--job", "j")], ids="".join)
def test_a_package_may_be_named_as_it_is_elsewhere(keeper: AgentServer, words: tuple[str, ...]) -> None:
    assert run("log", "Noted", "text=x", "--package", *words).exit_code == 0
    assert (only_event(keeper)["job"], only_event(keeper)["package"]) == ("j", "1.2.1")


@pytest.mark.parametrize("now, word, code", [(("--now",), "error", 2), ((), "warning", 0)], ids=["now", "soon"])
def test_a_token_that_is_refused_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, now: tuple[str, ...], word: str, code: int
) -> None:
    with agent_server(token="right") as keeper:
        monkeypatch.setenv("PILOTAGE_SERVER", keeper.url)
        monkeypatch.setenv("PILOTAGE_TOKEN", "wrong")
        result = run("log", "Noted", "text=x", "--job", "j", "--timeout", "600", *now)
        assert (result.exit_code, len(keeper.tokens)) == (code, 1)
        assert result.stderr.startswith(
            f"{word}: {keeper.url} did not accept it: HTTP 401: unauthorized: no such token\n"
        )
        assert "it stays in the spool; use a token" in result.stderr
        assert run("log", "Noted", "text=y", "--job", "j", "--no-deliver").stderr == ""
        monkeypatch.setenv("PILOTAGE_TOKEN", "right")
        assert run("courier", "--once").exit_code == 0
        assert len(keeper.events) == 2


def park(keeper: AgentServer, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    keep = keeper.keep

    def kept(batch: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        status, told = keep(batch)
        return status, told | {"parked": count}

    monkeypatch.setattr(keeper, "keep", kept)


def test_an_event_of_a_job_that_is_not_registered_is_told(keeper: AgentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    park(keeper, monkeypatch, 1)
    result = run("log", "Noted", "text=x", "--job", "typo", "--now", "--json")
    assert result.stderr == "job typo is not registered yet: the event waits at the server\n"
    assert (result.exit_code, json.loads(result.stdout)["parked"]) == (0, 1)
    result = run("tag", "a=1", "b=2", "typo")
    assert result.stderr == "1 of 2 events wait at the server until their jobs are registered\n"
    park(keeper, monkeypatch, 2)
    result = run("tag", "a=1", "b=2", "typo")
    assert result.stderr == "job typo is not registered yet: the events wait at the server\n"


def test_an_event_waits_for_its_server_and_goes_with_the_next(keeper: AgentServer) -> None:
    keeper.stop()
    assert run("log", "Noted", "text=first", "--job", "j").exit_code == 0
    keeper.start()
    assert not keeper.events
    assert run("log", "Noted", "text=second", "--job", "j").exit_code == 0
    assert [event["data"]["text"] for event in keeper.events.values()] == ["first", "second"]


def test_what_must_be_delivered_now_and_is_not_is_an_error_and_is_kept(keeper: AgentServer) -> None:
    keeper.stop()
    result = run("log", "Noted", "text=x", "--job", "j", "--now", "--timeout", "0.2")
    keeper.start()
    assert result.exit_code == 3
    assert "did not accept it within 0.2 s: no answer: " in result.stderr
    assert run("courier", "--once").exit_code == 0
    assert only_event(keeper)["data"] == {"text": "x"}


def test_what_the_server_refuses_is_told(keeper: AgentServer) -> None:
    keeper.refuse = lambda event: ("forbidden", "anna may not modify job j")
    assert "rejected it: anna may not modify job j [forbidden]" in refused("log", "Noted", "text=x", "--job", "j")


def test_only_kept_means_only_kept(keeper: AgentServer) -> None:
    result = run("log", "Noted", "text=x", "--job", "j", "--no-deliver", "--json")
    told = json.loads(result.stdout)
    assert (told["events"][0]["n"], told["events"][0]["delivered"], keeper.tokens) == (1, False, [])
    assert "exclude each other" in refused("log", "Noted", "text=x", "--no-deliver", "--now")


def test_the_outcome_is_told_as_json(keeper: AgentServer) -> None:
    told = json.loads(run("tag", "a=1", "b=2", "j", "--now", "--json").stdout)
    assert told["server"] == keeper.url
    assert [(each["n"], each["delivered"]) for each in told["events"]] == [(1, True), (2, True)]


# --- courier ----------------------------------------------------------------------------------------------------------


def test_the_courier_delivers_what_waits_and_says_so(keeper: AgentServer) -> None:
    run("tag", "a=1", "b=2", "j", "--no-deliver")
    keeper.refuse = lambda event: ("too_large", "no") if event["data"]["name"] == "b" else None
    result = run("courier", "--once")
    assert result.stdout.splitlines()[1].split() == [keeper.url, "1", "1", "0"]
    assert "refused.jsonl" in result.stderr
    assert result.exit_code == 0


def test_the_courier_says_what_still_waits_and_why(keeper: AgentServer) -> None:
    run("tag", "a=1", "j", "--no-deliver")
    keeper.stop()
    result = run("courier", "--once", "--json")
    keeper.start()
    (queue,) = json.loads(result.stdout)["queues"]
    assert (result.exit_code, queue["waiting"], "no answer" in queue["problem"]) == (3, 1, True)


def test_the_courier_shows_no_token_to_a_server_it_was_not_given_for(
    keeper: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("tag", "a=1", "j", "--no-deliver")
    monkeypatch.setenv("PILOTAGE_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    result = run("courier", "--once")
    assert (result.exit_code, keeper.tokens) == (3, [])
    assert "no token is known for it: --server" in result.stderr


def test_an_empty_queue_of_an_address_of_the_past_is_no_news(
    keeper: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("tag", "a=1", "j", "--now")
    assert len(json.loads(run("courier", "--once", "--json").stdout)["queues"]) == 1
    monkeypatch.setenv("PILOTAGE_SERVER", "http://127.0.0.1:9")
    assert json.loads(run("courier", "--once", "--json").stdout)["queues"] == []


def test_an_empty_spool_is_no_trouble_and_a_missing_one_is() -> None:
    assert run("courier", "--once").exit_code == 0
    assert "there is no such spool" in refused("courier", "--once", "--spool", "absent")
