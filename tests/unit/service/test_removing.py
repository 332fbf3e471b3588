"""Files of dropped lines: removed where nobody else has or reads them, and the book says what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.book.codec import Codec
from pilotage.book.query import EVERYTHING
from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import STATUS_NAMES
from pilotage.model.events.payloads import FilesRemoved
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import Drop, DropFiles, Hold, LineFiles, Release, Restore
from pilotage.model.settings.engine import EngineSettings
from pilotage.service.errors import OperationRefused
from pilotage.service.jobs import dropped_files
from pilotage.service.jobs.dropped_files import Removals, granted_in, packages_of_line, unfinished_removals
from pilotage.service.jobs.runner import Runner
from pilotage.service.jobs.submission import submit_message
from pilotage.service.journal.writer import BatchCommitter, Writer
from tests.kit.earlier_work import Place, place
from tests.kit.events import StandingClock
from tests.kit.served_book import WallClock
from tests.kit.small_service import SmallService

DOCUMENT = """
pilotage: 1
job: pairs
stages:
  - each: {n: 1..3}
    run: make {n}
    outputs: ["a-{n}", "b-{n}"]
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


@pytest.fixture
def service(here: Place) -> Iterator[SmallService]:
    made = SmallService(here)
    yield made
    made.aftermath.stop()


@pytest.fixture
def writer(here: Place) -> Iterator[Writer]:
    made = Writer(BatchCommitter(here.journal, clock=StandingClock(2_000.0), codec=Codec()))
    made.start()
    yield made
    made.stop()


def removals_of(service: SmallService, writer: Writer) -> Removals:
    def ask(question: Callable[[Engine], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(question(service.engine))
        return future

    at = service.place
    return Removals(
        service.jobs, journal=at.journal, writer=writer, codec=Codec(), clock=StandingClock(2_000.0), tree=at.tree,
        index=at.index, ask=ask,
    )  # fmt: skip


def drop(service: SmallService, writer: Writer, job: str, line: int = 1) -> LineFiles:
    service.ask(DropFiles(job=job, stage=1, line=line, remove_files=True, by="ann"))
    return removals_of(service, writer).finish(job, [f"1.{line}.1"])


def files(here: Place) -> list[str]:
    return sorted(each.name for each in here.folder.iterdir() if each.name[1:2] == "-")


def noted(here: Place, job: str) -> list[FilesRemoved]:
    row = here.journal.job(job)
    events = here.journal.find_events(EVERYTHING, after=0, limit=1000, job=row).items
    return [msgspec.json.decode(each.row.data, type=FilesRemoved) for each in events if each.row.type == "FilesRemoved"]


def submit(service: SmallService, text: str) -> str:
    """Submit a document, with what of it was made before."""
    prepared = service.place.prepare(text)
    service.jobs.bring(prepared.job, expansion=prepared.expansion, plan=prepared.plan, origin=prepared.origin)
    service.step(submit_message(prepared, 1, taken=False))
    return prepared.job


def test_what_is_as_it_was_made_goes_and_what_somebody_changed_stays(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    service.succeed("1.2.1", {"a-2": "three", "b-2": "four"})
    here.write(**{"b-1": "edited"})
    done = drop(service, writer, job)
    assert (done.removed, done.removed_bytes, done.removed_names, done.kept) == (1, 3, ("a-1",), 1)
    assert [(each.name, each.reason) for each in done.kept_files] == [("b-1", "changed")]
    assert files(here) == ["a-2", "b-1", "b-2"]
    [event] = noted(here, job)
    assert (event.by, event.removed, event.more, event.kept) == ("ann", ("a-1",), False, done.kept_files)


def test_what_is_not_there_any_more_is_told_as_gone(here: Place, service: SmallService, writer: Writer) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    (here.folder / "a-1").unlink()
    done = drop(service, writer, job)
    assert (done.removed_names, done.gone, done.kept) == (("b-1",), 1, 0)
    assert noted(here, job)[0].gone == ("a-1",)


def test_what_a_later_job_has_taken_over_or_made_stays(here: Place, service: SmallService, writer: Writer) -> None:
    job = service.submit(DOCUMENT).job
    for n in (1, 2, 3):
        service.succeed(f"1.{n}.1", {f"a-{n}": f"a{n}", f"b-{n}": f"b{n}"})
    later = submit(service, DOCUMENT.replace("1..3", "1..4"))
    done = drop(service, writer, job, 2)
    assert (done.removed, done.kept) == (0, 2)
    assert {each.reason for each in done.kept_files} == {"made"}
    assert f"the job {later} has" in done.kept_files[0].message
    assert "a-2" in files(here)


def test_what_a_job_that_is_not_over_takes_stays(here: Place, service: SmallService, writer: Writer) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    reads = "pilotage: 1\njob: other\nstages: [{run: use, inputs: [a-1], outputs: [c]}]\n"
    other = submit(service, reads)
    done = drop(service, writer, job)
    assert done.removed_names == ("b-1",)
    assert [(each.name, each.reason) for each in done.kept_files] == [("a-1", "read")]
    assert f"the unfinished job {other} reads it" in done.kept_files[0].message


def test_what_a_job_takes_through_a_link_or_from_the_folder_above_stays(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    (here.folder / "link").symlink_to("a-1")
    linked = submit(service, "pilotage: 1\njob: linked\nstages: [{run: use, inputs: [link], outputs: [c]}]\n")
    folder, here.folder = here.folder, here.folder.parent
    reads = f"{{run: use, inputs: [{folder.name}/b-1], outputs: [d]}}"
    above = submit(service, f"pilotage: 1\njob: above\nstages: [{reads}]\n")
    here.folder = folder
    done = drop(service, writer, job)
    assert {each.name: (each.reason, each.message) for each in done.kept_files} == {
        "a-1": ("read", f"the unfinished job {linked} reads it through a link"),
        "b-1": ("read", f"the unfinished job {above} reads it"),
    }
    assert done.removed_names == ()


def test_what_a_job_that_is_not_over_makes_by_a_pattern_stays(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    other = submit(service, 'pilotage: 1\njob: other\nstages: [{run: make, outputs: ["a-*"]}]\n')
    done = drop(service, writer, job)
    assert (done.removed_names, [each.name for each in done.kept_files]) == (("b-1",), ["a-1"])
    assert done.kept_files[0].message == f"the unfinished job {other} makes it as well"


def test_what_could_not_get_its_name_never_gets_it(here: Place, service: SmallService, writer: Writer) -> None:
    job = service.submit(DOCUMENT).job
    here.write(**{"a-1": "somebody else's"})
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    assert service.aftermath.unpublished(job) == 1
    done = drop(service, writer, job)
    assert (done.removed, done.gone, [each.name for each in done.kept_files]) == (0, 1, ["a-1"])
    assert (service.staged(job), service.aftermath.unpublished(job), service.aftermath.fault(job)) == ([], 0, None)
    (here.folder / "a-1").unlink()
    service.ask(Hold(job=job))
    service.ask(Release(job=job))
    assert files(here) == []


def test_a_service_that_starts_removes_what_one_that_died_was_told_to(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    service.succeed("1.2.1", {"a-2": "three", "b-2": "four"})
    service.ask(Drop(job=job, stage=1, line=2))
    service.ask(DropFiles(job=job, stage=1, line=1, remove_files=True, by="ann"))
    (here.folder / "a-1").unlink()  # so far it came
    again = SmallService(here, now=3_000.0)
    again.aftermath.recover(again.engine, job)
    wanted = unfinished_removals(again.engine)
    assert wanted == {job: ["1.1.1"]}
    done = removals_of(again, writer).finish(job, wanted[job])
    assert (done.removed_names, done.gone) == (("b-1",), 1)
    assert (files(here), noted(here, job)[0].by) == (["a-2", "b-2"], "ann")
    assert removals_of(again, writer).finish(job, wanted[job]) == LineFiles()
    again.aftermath.stop()


def test_many_files_are_noted_in_several_events(
    here: Place, service: SmallService, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped_files, "_EVENT_BYTES", 6)
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    assert drop(service, writer, job).removed == 2
    assert [(each.removed, each.more) for each in noted(here, job)] == [(("a-1",), True), (("b-1",), False)]


def test_a_line_is_its_packages_and_which_of_them_make_files(here: Place, service: SmallService) -> None:
    document = "pilotage: 1\njob: j\nstages:\n  - packages: [{run: make, outputs: [x]}, {run: tell}, {run: look, done: true, outputs: [y]}]\n"
    job = service.submit(document).job
    at_work = service.jobs.get(job)
    assert at_work is not None
    assert packages_of_line(at_work, 1, 1) == {"1.1.1": True, "1.1.2": False, "1.1.3": False}
    service.succeed("1.1.1", {"x": "x"})
    assert [each.ref for each in granted_in(job, ["1.1.1", "1.1.2"], service.engine)] == [AttemptRef(job, "1.1.1", 1)]


# --- in a service with its threads --------------------------------------------------------------------------------------


@contextmanager
def runner_of(here: Place, writer: Writer) -> Iterator[Runner]:
    made = Runner(
        journal=here.journal, writer=writer, clock=WallClock(), codec=Codec(), sites=[], accesses={}, tree=here.tree,
        index=here.index, logs=here.logs, settings=EngineSettings(),
    )  # fmt: skip
    made.start()
    try:
        yield made
    finally:
        made.stop()


def status(runner: Runner, job: str, number: int) -> str:
    return STATUS_NAMES[runner.ask(lambda engine: engine.state.jobs.by_id[job].status[number]).result()]


def test_a_line_is_taken_back_in_only_after_its_files_are_removed_also_by_the_next_service(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    service.ask(DropFiles(job=job, stage=1, line=1, remove_files=True, by="ann"))  # and then it dies
    with runner_of(here, writer) as runner:
        runner.operate(Restore(job=job, stage=1, line=1)).result()
        assert (files(here), status(runner, job, 0)) == ([], "ready")
        assert [each.removed for each in noted(here, job)] == [("a-1", "b-1")]


def test_a_line_is_dropped_with_what_it_made_and_with_what_it_made_before(
    here: Place, service: SmallService, writer: Writer
) -> None:
    job = service.submit(DOCUMENT).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    with runner_of(here, writer) as runner:
        plain = Drop(job=job, stage=1, line=1)
        assert runner.drop(plain, by="ann").result().files is None
        assert runner.files_left(plain) == LineFiles(kept=2)
        accepted = runner.drop(Drop(job=job, stage=1, line=1, remove_files=True), by="ann").result()
        assert accepted.files == LineFiles(removed=2, removed_bytes=6, removed_names=("a-1", "b-1"))
        assert (files(here), status(runner, job, 0)) == ([], "dropped")
        assert runner.files_left(plain) == LineFiles()
        with pytest.raises(OperationRefused):
            runner.drop(Drop(job=job, stage=1, line=9, remove_files=True), by="ann").result()


def test_what_is_being_read_is_kept_and_who_reads_it_is_named(
    here: Place, service: SmallService, writer: Writer
) -> None:
    reader = '  - run: join\n    inputs: ["a-*"]\n    outputs: [c-1]\n'
    job = service.submit(DOCUMENT.replace("1..3", "1..1") + reader).job
    service.succeed("1.1.1", {"a-1": "one", "b-1": "two"})
    assert "2.1.1" in service.assigned
    with runner_of(here, writer) as runner:
        wanted = Drop(job=job, stage=1, line=1, force=True, remove_files=True)
        done = runner.drop(wanted, by="ann").result().files
        assert done is not None
        assert (done.removed, [each.name for each in done.kept_files]) == (0, ["a-1", "b-1"])
        assert done.kept_files[0].message == "2.1.1 reads it: ask again when that is over"
    assert files(here) == ["a-1", "b-1"]
