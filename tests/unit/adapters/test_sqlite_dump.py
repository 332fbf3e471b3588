"""Dumping a job, loading it elsewhere, and purging it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.adapters.journals.dump import DumpError, check_lines, split_dumps
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import PackageFacts
from pilotage.book.rows.streams import highest_of
from pilotage.engine.restore import next_number
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Noted, Tagged
from pilotage.ports import JournalError
from pilotage.service.jobs.startup import fill_stream_gaps
from pilotage.service.journal.rebuild import check
from pilotage.service.journal.writer import BatchCommitter
from tests.kit.events import (
    START,
    StandingClock,
    Stream,
    a_short_job,
    cut,
    delivered,
    random_history,
    registered,
    shape,
)
from tests.kit.sqlite_books import everything, keep, known, opened

CONTENT = bytes(range(256)) * 3


def sealed_again(lines: list[bytes]) -> list[bytes]:
    """The same lines with a last one that vouches for them."""
    body = lines[:-1]
    end = msgspec.json.decode(lines[-1])
    end["sha256"] = hashlib.sha256(b"".join(body)).hexdigest()
    end["events"] = sum(line.startswith(b'{"event"') for line in body)
    end["contents"] = sum(line.startswith(b'{"content"') for line in body)
    return [*body, msgspec.json.encode(end) + b"\n"]


def told(journal: SqliteJournal, job: str) -> dict[str, Any]:
    """What is known of a job, but for the numbers that each book gives anew."""
    found = known(journal, job)
    order = {each.row.position: at for at, each in enumerate(found["events"])}
    plain = {"job_id": 0}
    return {
        "job": msgspec.structs.replace(found["job"], **plain),
        "stages": [msgspec.structs.replace(row, **plain) for row in found["stages"]],
        "tags": [msgspec.structs.replace(row, **plain) for row in found["tags"]],
        "packages": [
            (each.row.stage, each.row.line, each.row.number, numbered(each.row.facts, order))
            for each in found["packages"]
        ],
        "events": [
            (each.source, each.stream, msgspec.structs.replace(each.row, position=0, stream_id=0, job_id=0))
            for each in found["events"]
        ],
    }


def numbered(facts: PackageFacts, order: dict[int, int]) -> PackageFacts:
    facts.positions = [order[position] for position in facts.positions]
    facts.counted_with = None  # which says how far statistics have come, here or there
    for attempt in facts.attempts.values():
        attempt.staged_position = None if attempt.staged_position is None else order[attempt.staged_position]
        attempt.finished_position = None if attempt.finished_position is None else order[attempt.finished_position]
    return facts


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_loaded_job_is_the_dumped_one(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    folder = tmp_path_factory.mktemp("books")
    with opened(folder / "from") as source, opened(folder / "to") as target:
        # Out of order, twice, in batches, some of it before its job is registered, over some time.
        for at, batch in enumerate(cut(delivered(random_history(chance), chance), chance)):
            keep(source, batch, at=START + at // 3)
        keep(target, a_short_job("other", stream=Stream("service", "other")))
        for job in ("job-2", "job-1"):
            lines = list(source.dump(job))
            before = everything(folder / "to")["statistics"]
            assert target.load(lines) == job
            assert everything(folder / "to")["statistics"] == before
            assert told(target, job) == told(source, job)
            assert list(target.dump(job)) == list(lines)


def test_a_job_that_was_registered_twice_keeps_its_order(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        by = Stream("service", "core")
        keep(source, a_short_job(stream=by))
        keep(source, [by.event(registered(shape("simulate", lines=3)), job="j1", seen=1)])
        target.load(source.dump("j1"))
        assert list(target.dump("j1")) == list(source.dump("j1"))


def test_a_dump_is_the_same_of_a_sealed_job(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
        before = list(journal.dump("j1"))
        journal.seal("j1")
        assert list(journal.dump("j1")) == before


def test_contents_travel_with_their_job(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        sha256 = source.put_content(CONTENT)
        by = Stream()
        data = {"owner": "ada", "name": "n", "definition": sha256}
        event = by.event(Noted(text=""), job="j1")
        event = msgspec.structs.replace(event, type="JobRegistered", data=msgspec.Raw(msgspec.json.encode(data)))
        keep(source, [event])
        assert target.content(sha256) is None
        target.load(source.dump("j1"))
        assert target.content(sha256) == CONTENT


def test_events_of_a_loaded_job_are_repeats_afterwards(tmp_path: Path) -> None:
    events = a_short_job()
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, events)
        target.load(source.dump("j1"))
        receipt = BatchCommitter(target, clock=StandingClock()).take(events)
        assert (receipt.kept, receipt.repeated) == (0, len(events))
        other = msgspec.structs.replace(events[3], time=1.0)
        (refusal,) = BatchCommitter(target, clock=StandingClock()).take([other]).refused
        assert refusal.code == "conflict"


def test_a_stream_that_many_jobs_share_can_have_any_number_of_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage.book.rows.streams.RANGES_MAX", 30)
    monkeypatch.setattr("pilotage.book.fold.replay.GROUP_EVENTS", 20)
    by = Stream("service", "core")
    first, second = [], []
    pair = a_short_job("j1", packages=1, stream=by), a_short_job("j2", packages=1, stream=by)
    keep_first = [*pair[0]]
    for _ in range(200):
        first.append(by.event(Tagged(name="t", value="1"), job="j1", package="1.1.1"))
        second.append(by.event(Noted(text="x"), job="j2", package="1.1.1"))
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, [*keep_first, *pair[1], *(event for both in zip(first, second, strict=True) for event in both)])
        target.load(source.dump("j2"))
        assert target.load(source.dump("j1")) == "j1"  # which fills the holes
        streams = everything(tmp_path / "to")["streams"]
        assert [row[3:] for row in streams] == [(by.n, "[]")]


def test_events_that_wait_for_the_job_are_not_taken_twice(tmp_path: Path) -> None:
    events = a_short_job()
    late = Stream("client", "late").event(Tagged(name="colour", value="red"), job="j1", package="1.1.1")
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, events)
        keep(target, [events[3], late])  # parked: the job is not known there
        target.load(source.dump("j1"))
        row = target.job("j1")
        assert row is not None
        assert len(target.find_events(EVERYTHING, after=0, limit=99, job=row).items) == len(events) + 1
        assert everything(tmp_path / "to")["parked"] == []
        receipt = BatchCommitter(target, clock=StandingClock()).take([*events, late])
        assert receipt.repeated == len(events) + 1


def refused(journal: SqliteJournal, lines: list[bytes], why: str) -> None:
    before = everything(journal.folder)
    with pytest.raises(DumpError, match=why):
        journal.load(lines)
    assert everything(journal.folder) == before


def test_a_dump_that_is_not_whole_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, a_short_job())
        lines = list(source.dump("j1"))
        for count in range(len(lines)):
            refused(target, lines[:count], "the dump is truncated|line 1 ")
        text = b"".join(lines)
        refused(target, [text[: len(text) // 2]], "is malformed|the dump is truncated")
        refused(target, [*lines[:3], *lines[4:]], "the dump is damaged")
        refused(target, [*lines, lines[3]], "more lines after the last one")
        refused(target, [line.replace(b"lyon", b"Lyon") for line in lines], "the dump is damaged")
        refused(
            target,
            [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]],
            "not a dump that this version can read",
        )
        refused(target, [b"hello\n"], "line 1 of the dump is malformed")
        assert target.load([text[at : at + 7] for at in range(0, len(text), 7)]) == "j1"


def test_a_forged_dump_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, a_short_job())
        lines = list(source.dump("j1"))
        refused(target, sealed_again([lines[0], *lines[2:]]), "before its job|cannot be loaded")
        refused(target, sealed_again([lines[0], lines[1], lines[1], *lines[2:]]), "occurs twice")
        refused(
            target,
            sealed_again([line.replace(b'"type":"JobAcc', b'"type":"JobXcc') for line in lines]),
            "unknown event type",
        )
        refused(
            target,
            sealed_again([lines[0], lines[1].replace(b'"job":"j1"', b'"job":"j2"'), *lines[2:]]),
            "in the dump of",
        )
        content = msgspec.json.encode({"content": "ab" * 32, "base64": "aGVsbG8="}) + b"\n"
        refused(target, sealed_again([lines[0], content, *lines[1:]]), "does not match its hash")


def test_a_job_that_is_known_is_not_loaded_again(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
        lines = list(journal.dump("j1"))
        refused(journal, lines, "known here already")
        journal.purge("j1", at=1.0)
        refused(journal, lines, "known here already")


def test_a_stream_that_is_something_else_here_and_waits_for_the_job_too_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        of_job = a_short_job("j1", stream=Stream("service", "same"))
        keep(source, of_job)
        keep(target, [of_job[3]])  # parked: its job is not known yet
        keep(target, [Stream("service", "same").event(Noted(text="another"))])
        refused(target, list(source.dump("j1")), "an event of the job with other content")


def test_a_purged_job_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        keep(journal, a_short_job())
        keep(journal, [Stream("client", "c").event(Tagged(name="study", value="secret"), job="j1")])
        before = journal.job("j1")
        assert before is not None
        journal.purge("j1", at=77.0)
        row = journal.job("j1")
        assert row is not None
        assert (row.place, row.purged_at) == ("purged", 77.0)
        stays = ("job", "name", "owner", "state", "submitted_at", "started_at", "finished_at", "done")
        assert [getattr(row, name) for name in stays] == [getattr(before, name) for name in stays]
        assert "secret" not in repr(everything(tmp_path))
        assert journal.stages(row) == []
        assert journal.find_packages(EVERYTHING, after=None, limit=9, job=row).items == []
        assert journal.find_events(EVERYTHING, after=0, limit=9, job=row).items == []
        assert everything(tmp_path)["events"] == []
        with pytest.raises(JournalError, match="was purged"):
            list(journal.dump("j1"))
        with pytest.raises(JournalError, match="no such job"):
            list(journal.dump("j2"))
        (refusal,) = BatchCommitter(journal, clock=StandingClock()).take(a_short_job()[:1]).refused
        assert refusal.code == "purged"
        journal.purge("j1", at=99.0)
        assert journal.job("j1") == row


def of_a_service(job: str, *, first: int) -> list[Event]:
    """A short job as the engine of a service decides it: its numbers begin somewhere in the stream that all engines have."""
    by = Stream("service", "engine")
    by.n = first - 1
    return a_short_job(job, stream=by)


def test_jobs_of_several_services_go_into_one_book(tmp_path: Path) -> None:
    names = ("j1", "j2", "j3")
    with opened(tmp_path / "to") as target:
        for name, first in zip(names, (3, 3, 5), strict=True):
            with opened(tmp_path / name) as source:
                keep(source, of_a_service(name, first=first))
                assert target.load(source.dump(name)) == name
                one, other = known(source, name), known(target, name)
                assert [each.row.facts.state for each in one["packages"]] == [
                    each.row.facts.state for each in other["packages"]
                ]
        streams = {row.stream for row in target.streams("service")}
        assert streams == {"engine", "engine@j2", "engine@j3"}
        with opened(tmp_path / "fold") as scratch:
            assert check(target, scratch).sound
        # And from there on: what was renamed once keeps its name.
        with opened(tmp_path / "further") as further:
            for name in reversed(names):
                assert further.load(target.dump(name)) == name
            assert {row.stream for row in further.streams("service")} == streams


def test_a_name_that_is_taken_in_the_dump_or_in_the_book_is_not_given_again(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, of_a_service("j1", first=3))
        keep(source, [Stream("service", "engine@j1").event(Noted(text="x"), job="j1")])
        keep(target, of_a_service("j2", first=3))
        keep(target, [Stream("service", "engine@j1.2").event(Noted(text="y"), job="j2")])
        target.load(source.dump("j1"))
        assert {row.stream for row in target.streams("service")} == {
            "engine",
            "engine@j1",
            "engine@j1.2",
            "engine@j1.3",
        }


def test_dumps_that_follow_each_other_are_told_apart(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source:
        for name in ("j1", "j2"):
            keep(source, a_short_job(name, stream=Stream("service", name)))
        lines = [*source.dump("j1"), *source.dump("j2")]
    assert [check_lines(each) for each in split_dumps(lines)] == ["j1", "j2"]
    assert [check_lines(each) for each in split_dumps([b"".join(lines)])] == ["j1", "j2"]
    with pytest.raises(DumpError, match="the dump is truncated"):
        [check_lines(each) for each in split_dumps(lines[:-1])]


def test_an_engine_goes_on_above_every_number_of_a_loaded_job_and_its_stream_has_no_holes(tmp_path: Path) -> None:
    with opened(tmp_path / "from") as source, opened(tmp_path / "to") as target:
        keep(source, of_a_service("j1", first=7))
        last = max(row.watermark for row in source.streams("service")) or highest_of(next(source.streams("service")))
        target.load(source.dump("j1"))
        assert next_number(target.streams("service")) == last + 1
        fill_stream_gaps(target, list(target.streams("service")))
        (row,) = target.streams("service")
        assert (row.watermark, row.ahead) == (last, "[]")
        assert next_number([row]) == last + 1
        with opened(tmp_path / "fold") as scratch:
            assert check(target, scratch).sound
