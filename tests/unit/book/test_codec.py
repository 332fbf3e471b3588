"""Each way in which an event can be refused, and old versions that are still read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from pilotage.book.codec import PLACES_MAX, UPCASTERS, Checked, Codec, Limits, Refusal, RefusalCode
from pilotage.book.fold.intake import Intake
from pilotage.model.events.events import ATTEMPT_MAX, COUNTER_MAX, EVENT_TYPES, JUMP_MAX, TIME_MAX, EventType
from pilotage.model.events.payloads import Payload
from tests.kit.memory_ledger import MemoryBook

GOOD: dict[str, Any] = {
    "source": "service", "stream": "engine", "n": 1, "type": "Tagged", "time": 5, "job": "j",
    "data": {"name": "study", "value": "A"},
}  # fmt: skip
FINISHED = {
    "type": "AttemptFinished", "package": "1.1.1", "attempt": 1, "data": {"exit_code": "SUCCESS"},
}  # fmt: skip
SHA256 = "0f" * 32


def read(codec: Codec | None = None, **changes: Any) -> Checked | Refusal:
    return (codec or Codec()).read(json.dumps({**GOOD, **changes}).encode(), 7)


def refusal(codec: Codec | None = None, **changes: Any) -> tuple[str, str]:
    found = read(codec, **changes)
    assert isinstance(found, Refusal), found
    assert found.index == 7
    return found.code, found.message


def test_a_good_event_is_read_with_what_is_left_out_filled_in() -> None:
    found = read()
    assert isinstance(found, Checked)
    assert (found.kind, found.place, found.index) == ("job", None, 7)
    assert (found.event.epoch, found.event.seen, found.event.version) == (1, 0, 1)
    assert (found.data, found.event.time) == (EVENT_TYPES["Tagged"].payload(name="study", value="A"), 5.0)


@pytest.mark.parametrize(
    "changes, code, says",
    [
        ({"type": "Taged"}, "unknown_type", "Tagged"),
        ({"type": ""}, "unknown_type", "''"),
        ({"type": "x" * 100_000}, "unknown_type", "xxx..."),
        ({"version": 2}, "unknown_version", "version 1, not 2"),
        ({"version": 0}, "unknown_version", "not 0"),
        ({"version": -(2**70)}, "unknown_version", "not -"),
        ({"job": "-j"}, "malformed", "job id '-j'"),
        ({"job": "j" * 65}, "malformed", "job id"),
        ({"job": "j\n"}, "malformed", "job id"),
        ({"job": ""}, "malformed", "job id"),
        ({"data": {"name": "study\n", "value": "A"}}, "malformed", "'study\\n' must not end with a line break"),
        ({"type": "OwnerSet", "data": {"owner": "ann\n"}}, "malformed", "must not end with a line break"),
        (
            {"type": "AccessSet", "data": {"rules": [{"principal": "ann", "rights": ["read\n"]}]}},
            "malformed",
            "'read\\n' must not end with a line break",
        ),
        (
            {"type": "AccessSet", "data": {"rules": [{"principal": "ann\n", "rights": ["read"]}]}},
            "malformed",
            "must not end with a line break",
        ),
        (
            {"type": "JobRegistered", "data": {"owner": "ann", "name": "n", "tags": {"study\n": "A"}}},
            "malformed",
            "must not end with a line break",
        ),
        ({"stream": ""}, "malformed", "stream"),
        ({"stream": "a b"}, "malformed", "stream"),
        ({"source": "cat"}, "malformed", "source"),
        ({"n": 0}, "malformed", "n"),
        ({"n": 2**53}, "malformed", "n"),
        ({"epoch": 0}, "malformed", "epoch"),
        ({"seen": -1}, "malformed", "seen"),
        ({"seen": 2**70}, "malformed", "seen"),
        ({"time": -1}, "malformed", "time"),
        ({"time": 1e12}, "malformed", "time"),
        ({"time": "noon"}, "malformed", "time"),
        ({"package": "1.1"}, "malformed", "stage.line.n"),
        ({"package": "1.01.1"}, "malformed", "stage.line.n"),
        ({"package": "0.1.1"}, "malformed", "stage.line.n"),
        ({"package": "1.1.1000000000"}, "malformed", "stage.line.n"),
        ({"attempt": 1}, "malformed", "subject"),
        ({"package": "1.1.1", "job": None}, "malformed", "subject"),
        ({"pilot": "p"}, "malformed", "subject"),
        ({"pilot": "p", "site": "s", "job": None}, "malformed", "subject"),
        ({"job": None, "site": "a b", "type": "Noted", "data": {"text": ""}}, "malformed", "site name"),
        ({"job": None}, "malformed", "about a attempt or job or package"),
        ({**FINISHED, "attempt": 0}, "malformed", "attempt"),
        ({**FINISHED, "attempt": 10**9}, "malformed", "attempt"),
        ({**FINISHED, "attempt": None}, "malformed", "about a attempt"),
        ({**FINISHED, "data": {}}, "malformed", "exit_code"),
        ({**FINISHED, "data": {"exit_code": "FINE"}}, "malformed", "FINE"),
        ({**FINISHED, "data": {"exit_code": "SUCCESS", "exit_staus": 1}}, "malformed", "exit_staus"),
        ({**FINISHED, "data": {"exit_code": "SUCCESS", "cpu_seconds": -1}}, "malformed", "cpu_seconds"),
        ({**FINISHED, "data": {"exit_code": "SUCCESS", "cpu_seconds": float("nan")}}, "malformed", ""),
        ({"data": {"name": "a b", "value": ""}}, "malformed", "name"),
        ({"data": {"name": "a", "value": "\ud800"}}, "malformed", ""),
        ({"data": None}, "malformed", "object"),
        ({"data": [1]}, "malformed", "object"),
        ({"colour": 1}, "malformed", "colour"),
        ({"data": {"name": "big", "value": "x" * 70_000}}, "too_large", "65,536 bytes"),
        ({"data": {"name": "big", "value": "é" * 40_000}}, "too_large", "65,536 bytes"),
        ({"source": "agent", "type": "CancelAccepted", "data": {}}, "forbidden", "only the service may send CancelAccepted, not agent"),
        ({"source": "application", **FINISHED, "type": "CommitGranted", "data": {}}, "forbidden", "application"),
    ],
)  # fmt: skip
def test_a_bad_event_is_refused_with_what_is_wrong(changes: dict[str, Any], code: str, says: str) -> None:
    found, message = refusal(**changes)
    assert (found, says in message) == (code, True), (found, message)
    assert len(message) < 1000


def test_an_event_over_the_limit_is_too_large() -> None:
    codec = Codec(limits=Limits(event_bytes_max=1000))
    assert refusal(codec, data={"name": "a", "value": "x" * 1000}) == ("too_large", "an event has at most 1,000 bytes")


def test_every_code_has_a_case_here() -> None:
    by_the_codec = {"unknown_type", "unknown_version", "malformed", "too_large", "forbidden"}
    assert set(get_args(RefusalCode)) - by_the_codec == {"conflict", "jumped", "purged"}, "those of the intake"
    assert Intake.__doc__, "whose cases are in test_join.py"


def test_numbers_at_their_limits_are_read_and_kept() -> None:
    most = 2**53 - 1
    registered = {"n": JUMP_MAX, "type": "JobRegistered", "epoch": most, "seen": most, "time": 253_402_300_799.0}
    finished = {
        **FINISHED, "package": "999999999.999999999.999999999", "attempt": 999_999_999, "time": 0, "n": 1,
        "data": {"exit_code": "SUCCESS", "peak_memory_bytes": most, "cpu_seconds": 1.7e308, "exit_status": -(2**31)},
    }  # fmt: skip
    book = MemoryBook()
    events = [
        {**GOOD, **registered, "data": {"owner": "a", "name": "n"}},
        {**GOOD, **finished},
    ]
    assert book.take(events).receipt.kept == 2
    assert book.package("j", "999999999.999999999.999999999").attempts[999_999_999].peak_memory_bytes == most


@pytest.mark.parametrize(
    "text",
    ["", SHA256[:-1], SHA256 + "0", SHA256 + "\n", SHA256[:-1] + "\n", SHA256.upper(), SHA256[:-2] + " 0", "é" * 64],
)
def test_what_is_no_sha256_is_refused_wherever_it_stands(text: str) -> None:
    manifest = [{"name": "out", "size_bytes": 1, "sha256": text}]
    finished: dict[str, Any] = {**FINISHED, "data": {"exit_code": "SUCCESS", "manifest": manifest}}
    registered: dict[str, Any] = {"type": "JobRegistered", "data": {"owner": "a", "name": "n", "definition": text}}
    lists = {"items": text}
    listed: dict[str, Any] = {"type": "JobRegistered", "data": {"owner": "a", "name": "n", "lists": lists}}
    expanded: dict[str, Any] = {"type": "StageExpanded", "data": {"stage": 1, "shape": {}, "lists": lists}}
    for changes in (finished, registered, listed, expanded):
        code, message = refusal(**changes)
        assert (code, "sha256" in message) == ("malformed", True)
    manifest[0]["sha256"] = registered["data"]["definition"] = lists["items"] = SHA256
    assert all(isinstance(read(**changes), Checked) for changes in (finished, registered, listed, expanded))


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("name", ["exit_status", "signal"])
def test_a_number_that_no_store_can_hold_is_refused(name: str, value: int) -> None:
    changes: dict[str, Any] = {**FINISHED, "data": {"exit_code": "SUCCESS", name: value}}
    code, message = refusal(**changes)
    assert (code, name in message) == ("malformed", True)


@pytest.mark.parametrize(
    "shape",
    [
        {"items": 20_000_000, "templates": [{"lines": 20_000_000, "activities": ["a"] * 50_000}]},
        {"items": 20_000_000, "templates": [{"lines": 20_000_000, "activities": ["a"]}] * 50_000},
    ],
)
def test_a_shape_with_more_packages_than_can_be_named_is_refused(shape: dict[str, Any]) -> None:
    registered: dict[str, Any] = {"type": "JobRegistered", "data": {"owner": "a", "name": "n", "stages": [shape]}}
    assert refusal(**registered)[0] in ("malformed", "too_large")


class Shouted(Payload, frozen=True, kw_only=True):
    """A payload in its third version."""

    text: str
    loud: bool


def shouted_codec() -> Codec:
    types = {"Shouted": EventType(payload=Shouted, subjects=frozenset({"job"}), version=3)}
    return Codec(
        types=types,
        upcasters={
            ("Shouted", 1): lambda data: {"text": data["words"]},
            ("Shouted", 2): lambda data: {**data, "loud": data["text"].isupper()},
        },
    )


@pytest.mark.parametrize(
    "version, data",
    [(1, {"words": "HO"}), (2, {"text": "HO"}), (3, {"text": "HO", "loud": True})],
)
def test_every_old_version_is_read_as_the_present_one(version: int, data: dict[str, Any]) -> None:
    found = read(shouted_codec(), type="Shouted", version=version, data=data)
    assert isinstance(found, Checked)
    assert found.data == Shouted(text="HO", loud=True)
    assert found.event.version == version, "it is stored as it came"


@pytest.mark.parametrize(
    "version, data, code",
    [
        (1, {"text": "HO"}, "malformed"),
        (1, [], "malformed"),
        (2, {"text": 5}, "malformed"),
        (2, {"text": "a", "extra": 1}, "malformed"),
        (4, {}, "unknown_version"),
        (0, {}, "unknown_version"),
    ],
)
def test_an_old_version_that_is_not_what_it_was_is_refused(version: int, data: Any, code: str) -> None:
    assert refusal(shouted_codec(), type="Shouted", version=version, data=data)[0] == code


def test_an_upcaster_exists_for_every_old_version_and_for_nothing_else() -> None:
    old = {(name, version) for name, each in EVENT_TYPES.items() for version in range(1, each.version)}
    assert set(UPCASTERS) == old


@pytest.mark.parametrize(
    "kind, name", [("stream", "a:b@c"), ("stream", "-x"), ("site", "lyon/ce"), ("site", "x" * 100)]
)
def test_a_name_that_is_good_for_one_thing_is_not_good_for_a_job(kind: str, name: str) -> None:
    codec = Codec()
    about = {"stream": name} if kind == "stream" else {"site": name, "job": None}
    assert isinstance(read(codec, **about, type="Noted", data={"text": ""}), Checked)
    assert refusal(codec, job=name)[0] == "malformed"


class Shared(dict[str, Any]):
    """What another thread forgets as well, while somebody looks what is oldest."""

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        del self[names[0]]
        return iter(names)


def test_two_threads_may_forget_old_places_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec()
    known = {f"1.{line}.1": (1, line, 1) for line in range(1, 2 * PLACES_MAX + 1)}
    monkeypatch.setattr(codec, "_places", Shared(known))
    found = read(codec, **FINISHED | {"package": "2.1.1"})
    assert isinstance(found, Checked)
    assert found.place == (2, 1, 1)


def test_a_name_that_was_taken_with_a_line_break_is_read_for_ever() -> None:
    found = read(Codec().without_limits(), data={"name": "study\n", "value": "A"})
    assert isinstance(found, Checked)


@pytest.mark.parametrize("about", [{}, FINISHED], ids=["a job", "an attempt"])
@pytest.mark.parametrize(
    "field, least, most",
    [
        ("n", 1, COUNTER_MAX), ("epoch", 1, COUNTER_MAX), ("seen", 0, COUNTER_MAX), ("time", 0, TIME_MAX - 1),
        ("attempt", 1, ATTEMPT_MAX),
    ],
)  # fmt: skip
def test_a_counter_is_taken_up_to_both_of_its_ends(about: dict[str, Any], field: str, least: int, most: int) -> None:
    if field == "attempt":
        about = FINISHED
    said = {"source": "agent", "stream": "p"} if about else {}
    for value in (least, most):
        assert isinstance(read(**{**about, **said, field: value}), Checked), value
    for value in (least - 1, most + 1):
        assert refusal(**{**about, **said, field: value})[0] == "malformed", value
