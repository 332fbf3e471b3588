"""Outputs by their dispositions: copies that an attempt owes to stores, and deletable ones that go after their last consumer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from pilotage.book.codec import Checked, Codec
from pilotage.model.events.events import Event
from pilotage.model.events.file_payloads import OutputsStored, StoredCopy
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Kill
from pilotage.model.exchange.reports import OutputsCopied
from pilotage.ports import StoreError
from pilotage.service.jobs.dropped_files import Disposals, ReleasedFile, RemovalOrder, released_until_now
from pilotage.service.jobs.preview import plan
from pilotage.service.journal.writer import Batch, Writer
from tests.kit.earlier_work import Place
from tests.kit.small_service import SmallService
from tests.unit.service.test_removing import here, noted, removals_of, service, submit, writer

__all__ = ["here", "service", "writer"]

DOCUMENT = """
pilotage: 1
job: chain
stages:
  - run: make
    outputs:
      - {name: part.dat, dispositions: [forward, deletable]}
      - {name: log.txt}
  - run: merge
    inputs: [part.dat]
    outputs: [{name: all.dat, dispositions: [store], replicas: 2}]
"""
ARCHIVES = ["file:///tape/", "s3://bucket/archive"]


@pytest.fixture
def done(here: Place, service: SmallService) -> AttemptRef:
    """The attempt that made a deletable output."""
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"part.dat": "part", "log.txt": "log"})
    return AttemptRef(job, "1.1.1", 1)


def event_of(ref: AttemptRef, kind: str, data: object, *, n: int = 1) -> Checked:
    event = Event(
        source="service", stream="engine-x", n=n, type=kind, time=1.0, epoch=1, job=ref.job, package=ref.package,
        attempt=ref.attempt, data=msgspec.Raw(msgspec.json.encode(data)),
    )  # fmt: skip
    checked = Codec().check(event)
    assert isinstance(checked, Checked), checked
    return checked


def test_deletable_outputs_go_and_the_book_and_the_index_say_so(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    removals_of(service, writer).dispose([RemovalOrder(done, 1, "")])
    assert not (here.folder / "part.dat").exists()
    assert (here.folder / "log.txt").read_text() == "log"
    (event,) = noted(here, done.job)
    assert (event.removed, event.by, event.more) == (("part.dat",), "", False)
    sha256 = hashlib.sha256(b"part").hexdigest()
    assert here.index.disposed(str(here.folder), ["part.dat", "log.txt"]) == {"part.dat": {sha256}}


def test_an_output_that_was_changed_since_stays(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    (here.folder / "part.dat").write_text("mine")
    removals_of(service, writer).dispose([RemovalOrder(done, 1, "")])
    assert (here.folder / "part.dat").read_text() == "mine"
    assert [(each.name, each.reason) for each in noted(here, done.job)[0].kept] == [("part.dat", "changed")]


def test_an_output_that_another_job_reads_stays(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    submit(service, "pilotage: 1\njob: other\nstages: [{run: use, inputs: [part.dat], outputs: [c]}]\n")
    removals_of(service, writer).dispose([RemovalOrder(done, 1, "")])
    assert (here.folder / "part.dat").exists()
    assert [each.reason for each in noted(here, done.job)[0].kept] == ["read"]


def test_the_decision_is_carried_out_when_it_is_durable(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    disposals = Disposals(removals_of(service, writer))
    service.aftermath._dispose = disposals.want
    service.aftermath.follow(service.engine, [event_of(done, "OutputsDisposed", {})])
    disposals._thread.submit(lambda: None).result()
    disposals.stop()
    assert not (here.folder / "part.dat").exists()


def test_a_disposal_without_an_outcome_is_finished_by_the_next_service(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    removals = removals_of(service, writer)
    assert removals.unfinished_disposals([done.job]) == []
    writer.submit(Batch([event_of(done, "OutputsDisposed", {})], own=True)).result()
    assert removals.unfinished_disposals([done.job]) == [RemovalOrder(done, 1, "")]
    disposals = Disposals(removals)
    disposals.resume(service.engine)
    disposals._thread.submit(lambda: None).result()
    disposals.stop()
    assert not (here.folder / "part.dat").exists()
    assert removals.unfinished_disposals([done.job]) == []


def test_a_plan_says_what_was_deleted_on_purpose(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    def planned() -> tuple[int, dict[str, int], Sequence[str]]:
        found = plan(here.submission(DOCUMENT), tree=here.tree, index=here.index, admission=lambda _: (), now=0.0)
        return found.would_run, found.changed, found.notes

    service.succeed("2.1.1", {"all.dat": "all"})
    service.step(OutputsCopied(ref=AttemptRef(done.job, "2.1.1", 1)))
    removals_of(service, writer).dispose([RemovalOrder(done, 1, "")])
    assert planned() == (0, {}, ("1 package is not run again: outputs that are missing were deleted on purpose",))
    (here.folder / "all.dat").unlink()
    changed = {"missing output": 1, "deleted on purpose, and needed again": 1}
    assert planned() == (2, changed, ("1 output is stored twice",))


# --- copies ---


@pytest.fixture
def stored(service: SmallService, done: AttemptRef) -> AttemptRef:
    """An attempt whose output is staged, and is to be stored twice."""
    service.succeed("2.1.1", {"all.dat": "all"})
    return AttemptRef(done.job, "2.1.1", 1)


def test_an_attempt_owes_a_copy_to_each_archive(here: Place, service: SmallService, stored: AttemptRef) -> None:
    first, second = service.jobs.owed_copies(stored, ARCHIVES)
    assert [first.locator, second.locator] == [
        f"file:///tape/{stored.job}/all.dat",
        f"s3://bucket/archive/{stored.job}/all.dat",
    ]
    assert (first.name, first.size_bytes, first.sha256) == ("all.dat", 3, hashlib.sha256(b"all").hexdigest())
    assert first.source == str(Path(here.tree.staged_folder(str(here.folder), stored.job)) / "2.1.1-1-0")
    service.step(OutputsCopied(ref=stored))
    assert service.jobs.owed_copies(stored, ARCHIVES)[0].source == str(here.folder / "all.dat"), "it is published now"
    assert first.replaceable == frozenset()


def test_outputs_that_are_not_stored_owe_nothing(service: SmallService, done: AttemptRef) -> None:
    assert service.jobs.owed_copies(done, ARCHIVES) == []


def test_too_few_stores_are_told(service: SmallService, stored: AttemptRef) -> None:
    with pytest.raises(StoreError, match="2 copies of it must be stored, and there are stores for 1"):
        service.jobs.owed_copies(stored, ARCHIVES[:1])


def test_copies_of_earlier_attempts_are_ours(service: SmallService, writer: Writer, stored: AttemptRef) -> None:
    locator, old = f"file:///tape/{stored.job}/all.dat", hashlib.sha256(b"old").hexdigest()
    copies = (StoredCopy(name="all.dat", locator=locator, size_bytes=3, sha256=old),)
    writer.submit(Batch([event_of(stored, "OutputsStored", OutputsStored(copies=copies))], own=True)).result()
    first, second = service.jobs.owed_copies(stored, ARCHIVES)
    assert (first.replaceable, second.replaceable) == (frozenset({old}), frozenset())


def test_files_that_their_owner_released_go_from_the_tree_and_those_of_others_stay(
    here: Place, service: SmallService, writer: Writer
) -> None:
    two = "pilotage: 1\njob: two\nstages: [{run: make, outputs: [log.txt, other.txt]}]\n"
    job = service.submit(two).job
    service.succeed("1.1.1", {"log.txt": "log", "other.txt": "other"})
    removals, row = removals_of(service, writer), here.journal.job(job)
    assert row is not None
    log = f"job:{job}/log.txt"
    removals.release([ReleasedFile(log, "somebody else"), ReleasedFile(f"job:{job}/unknown", row.owner or "")])
    assert (here.folder / "log.txt").exists()
    removals.release([ReleasedFile(log, row.owner or "")])
    assert not (here.folder / "log.txt").exists()
    assert (here.folder / "other.txt").exists(), "it was not released"
    (event,) = noted(here, job)
    assert (event.removed, event.by) == (("log.txt",), row.owner)
    assert here.index.disposed(str(here.folder), ["log.txt"]) == {"log.txt": {hashlib.sha256(b"log").hexdigest()}}


def test_a_released_file_that_an_unfinished_job_uses_stays_until_that_is_over(
    here: Place, service: SmallService, writer: Writer, done: AttemptRef
) -> None:
    row = here.journal.job(done.job)
    assert row is not None
    released = ReleasedFile(f"job:{done.job}/log.txt", row.owner or "")
    removals = removals_of(service, writer)
    assert removals.release([released]) == [released]
    assert (here.folder / "log.txt").exists()
    service.ask(Kill(job=done.job))
    assert removals.release([released]) == []
    assert not (here.folder / "log.txt").exists()


def test_a_release_without_an_outcome_is_finished_by_the_next_service(
    here: Place, service: SmallService, writer: Writer
) -> None:
    made = service.submit("pilotage: 1\njob: one\nstages: [{run: make, outputs: [log.txt, other.txt]}]\n").job
    service.succeed("1.1.1", {"log.txt": "log", "other.txt": "other"})
    merge = service.submit("pilotage: 1\njob: merge\nstages: [{run: merge, outputs: [all.txt]}]\n").job
    state = service.engine.state.jobs.by_id[merge]
    state.plan = msgspec.structs.replace(state.plan, releases=lambda _: [f"job:{made}/log.txt", "job:purged/log.txt"])
    removals = removals_of(service, writer)
    assert released_until_now(service.engine) == {}, "it is not done"
    service.succeed("1.1.1", {"all.txt": "all"})
    released = released_until_now(service.engine)
    [unfinished] = removals.unfinished_releases(released)
    assert unfinished.locator == f"job:{made}/log.txt"
    disposals = Disposals(removals)
    disposals.resume(service.engine)
    disposals._thread.submit(lambda: None).result()
    disposals.stop()
    assert sorted(path.name for path in here.folder.glob("*.txt")) == ["all.txt", "other.txt"]
    assert noted(here, made)[0].removed == ("log.txt",)
    assert removals.unfinished_releases(released) == []


def test_a_released_file_that_was_made_again_since_is_not_removed_at_the_next_start(
    here: Place, service: SmallService, writer: Writer
) -> None:
    merge = service.submit("pilotage: 1\njob: merge\nstages: [{run: merge, outputs: [all.txt]}]\n").job
    service.succeed("1.1.1", {"all.txt": "all"})
    made = service.submit("pilotage: 1\njob: one\nstages: [{run: make, outputs: [log.txt]}]\n").job
    service.succeed("1.1.1", {"log.txt": "log"})
    released = {merge: {"1.1.1": [ReleasedFile(f"job:{made}/log.txt", "")]}}
    assert removals_of(service, writer).unfinished_releases(released) == []
