"""How far a job is may be told a moment late while it runs; of its end it is told what holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pilotage.book.rows.rows import JobRow
from pilotage.reading.access import local_principal
from pilotage.service.http.progress import _counted
from pilotage.service.http.services import AnswerCache


class SlowBook:
    """Counts packages, and takes a second for each question."""

    def __init__(self) -> None:
        self.now = 0.0
        self.retrying = 1

    def packages_of(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(items=[], next=None)

    def count_packages(self, _user: object, _query: str, *, job: JobRow) -> int:
        self.now += 1.0
        return self.retrying


def test_what_was_counted_while_a_job_ran_is_not_told_of_its_end() -> None:
    book = SlowBook()
    services: Any = SimpleNamespace(
        reader=book, answer_cache=AnswerCache(seconds=lambda: book.now), marks=lambda _: None
    )
    anna = local_principal("anna")
    running = JobRow(job_id=1, job="j", state="RUNNING", touched=1, heard_at=1.0)
    assert _counted(services, anna, running)["retrying"] == 1
    book.retrying = 0
    later = JobRow(job_id=1, job="j", state="RUNNING", touched=1, heard_at=2.0)
    assert _counted(services, anna, later)["retrying"] == 1
    over = JobRow(job_id=1, job="j", state="DONE", touched=1, heard_at=2.0, finished_at=2.0)
    assert _counted(services, anna, over)["retrying"] == 0


def test_all_that_is_done_is_looked_through_more_seldom_than_what_goes_on() -> None:
    book = SlowBook()
    services: Any = SimpleNamespace(
        reader=book, answer_cache=AnswerCache(seconds=lambda: book.now), marks=lambda _: None
    )
    anna = local_principal("anna")

    def told(heard_at: float) -> tuple[int, int]:
        row = JobRow(job_id=1, job="j", state="RUNNING", touched=1, heard_at=heard_at)
        counts = _counted(services, anna, row)
        return counts["retrying"], counts["adopted"]

    assert told(1.0) == (1, 1)
    book.retrying = 2
    book.now += 50.0  # each of the two took two seconds
    assert told(2.0) == (2, 1)
    book.now += 200.0
    assert told(3.0) == (2, 2)
