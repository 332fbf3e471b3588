"""The jobs that are worked on: had from the book when asked for, with every stage that was laid out since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.service.jobs.active_jobs import ActiveJobs
from pilotage.service.jobs.late_stages import Expanded
from pilotage.service.jobs.submission import Prepared, expand_late_stage
from pilotage.service.works.reuse import fields_of, key_of
from tests.kit.earlier_work import Place, place
from tests.kit.small_service import SmallService
from tests.kit.sqlite_books import keep

TWO = """
pilotage: 1
job: two
stages:
  - each: {n: 1..2}
    run: make {n}
    outputs: ["out-{n}"]
"""
LATE = """
pilotage: 1
job: late
stages:
  - {run: split, outputs: ["part-*"]}
  - {each: {part: "part-*"}, run: "work {part}", inputs: ["{part}"], outputs: ["half-{part}"]}
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


def jobs_of(here: Place) -> ActiveJobs:
    return ActiveJobs(here.journal, tree=here.tree, index=here.index)


def registered(here: Place, prepared: Prepared) -> None:
    data = msgspec.Raw(msgspec.json.encode(prepared.registered))
    event = Event(source="service", stream="s", n=1, type="JobRegistered", time=1.0, job=prepared.job, data=data)
    keep(here.journal, [event])


def brought(jobs: ActiveJobs, prepared: Prepared) -> None:
    jobs.bring(prepared.job, expansion=prepared.expansion, plan=prepared.plan, origin=prepared.origin)


def test_a_job_is_had_from_the_book_and_let_go_of_and_had_again(here: Place) -> None:
    prepared = here.prepare(TWO)
    registered(here, prepared)
    jobs = jobs_of(here)
    found = jobs.get(prepared.job)
    assert found is not None
    assert (found.folder, found.plan.count, found.number("1.2.1")) == (str(here.folder), 2, 1)
    assert found.expansion.block(1).activity == "make"
    assert (found.number("9.9.9"), found.number("no place")) == (None, None)
    assert jobs.get(prepared.job) is found
    jobs.release(prepared.job)
    again = jobs.get(prepared.job)
    assert again is not None
    assert again is not found


def test_a_job_that_the_book_does_not_have_is_nobodys(here: Place) -> None:
    assert jobs_of(here).get("unknown") is None
    prepared = here.prepare(TWO)  # and was not registered
    assert jobs_of(here).get(prepared.job) is None


def test_a_job_of_which_the_book_has_not_everything_is_told_and_left_alone(
    here: Place, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = here.prepare(TWO)
    lost = msgspec.structs.replace(prepared.registered, lists={**prepared.registered.lists, "origin": "0" * 64})
    registered(here, msgspec.structs.replace(prepared, registered=lost))
    assert jobs_of(here).get(prepared.job) is None
    assert "cannot be expanded again" in caplog.text


def test_only_the_jobs_of_a_folder_are_beside_each_other(here: Place) -> None:
    one = here.prepare(TWO)
    other = msgspec.structs.replace(here.prepare(TWO), job="elsewhere")
    other = msgspec.structs.replace(
        other, origin=msgspec.structs.replace(other.origin, folder=str(here.folder / "sub"))
    )
    (here.folder / "sub").mkdir()
    jobs = jobs_of(here)
    brought(jobs, one)
    brought(jobs, other)
    assert [job for job, _ in jobs.beside(str(here.folder), {one.job, "elsewhere", "unknown"})] == [one.job]


def test_what_an_attempt_was_asked_for_is_remembered_until_it_is_over(here: Place) -> None:
    service = SmallService(here)
    prepared = service.submit(TWO)
    at_work = service.jobs.get(prepared.job)
    assert at_work is not None
    ref = service.work("1.2.1")
    assert (at_work.knows(ref), at_work.number_of(ref)) == (True, 1)
    made = at_work.made(ref, ())
    work = at_work.work(service.assigned["1.2.1"], service.manifests)
    assert (made.key, made.document, made.ref) == (key_of(fields_of(work)), "two", ref)
    at_work.forget(ref)
    assert not at_work.knows(ref)
    assert at_work.number_of(AttemptRef(prepared.job, "1.1.1", 7)) == 0
    service.aftermath.stop()


@pytest.mark.parametrize(
    "fresh, earlier, looked_for", [(False, False, False), (False, True, True), (True, True, False)]
)
def test_an_earlier_run_is_looked_for_only_where_there_was_one_that_may_be_adopted(
    here: Place, *, fresh: bool, earlier: bool, looked_for: bool
) -> None:
    if earlier:
        here.run(TWO)
    service = SmallService(here)
    at_work = service.jobs.get(service.submit(TWO.replace("make", "build"), fresh=fresh).job)
    assert at_work is not None
    assert (at_work.earlier_key(service.work("1.1.1")) is not None) == looked_for
    service.aftermath.stop()


def test_a_stage_that_was_laid_out_counts_once_it_is_written(here: Place) -> None:
    prepared = here.prepare(LATE)
    registered(here, prepared)
    jobs = jobs_of(here)
    brought(jobs, prepared)
    grown, plan, _ = expand_late_stage(here.journal, prepared.expansion, stage=2, produced={0: ["part-a", "part-b"]})
    jobs.offer_expansion(prepared.job, 2, Expanded(expansion=grown, plan=plan))
    before = jobs.get(prepared.job)
    assert before is not None
    assert before.plan.count == 1
    jobs.accept_expansion(prepared.job, 2)
    after = jobs.get(prepared.job)
    assert after is not None
    assert (after.plan.count, after.number("2.2.1")) == (3, 2)


def test_a_stage_that_another_laid_out_is_had_from_the_book(here: Place) -> None:
    prepared = here.prepare(LATE)
    registered(here, prepared)
    jobs = jobs_of(here)
    brought(jobs, prepared)
    _, _, (told, *_) = expand_late_stage(here.journal, prepared.expansion, stage=2, produced={0: ["part-a"]})
    data = msgspec.Raw(msgspec.json.encode(told))
    event = Event(source="service", stream="s", n=2, type="StageExpanded", time=2.0, job=prepared.job, data=data)
    keep(here.journal, [event])
    jobs.accept_expansion(prepared.job, 2)  # nothing was offered
    found = jobs.get(prepared.job)
    assert found is not None
    assert found.plan.count == 2
