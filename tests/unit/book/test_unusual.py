"""When a count of what was tried again must be made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from pilotage.book.fold.join import Change
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import AttemptFacts, JobRow, PackageFacts, PackageRow
from pilotage.service.http import services
from pilotage.service.http.services import UnusualPackages


class Told(msgspec.Struct):
    """What a batch changed."""

    changes: list[Change]

    def longer(self) -> Iterator[Change]:
        return iter(self.changes)


def retried(job: str, *, state: str) -> Change:
    facts = PackageFacts(state=state, attempts={1: AttemptFacts(), 2: AttemptFacts()})
    return Change(job=JobRow(job_id=1, job=job), package=PackageRow(1, 1, 1, 1, facts), state_before="RUNNING")


def note(noted: UnusualPackages, *changes: Change) -> None:
    told: Any = Told(list(changes))
    ledger: Any = Ledger
    noted.note(told, ledger)


def test_what_is_on_its_way_has_no_mark_and_another_one_when_it_is_durable() -> None:
    noted = UnusualPackages()
    before, other = noted.marks("j"), noted.marks("k")
    assert before is not None
    note(noted, retried("j", state="RUNNING"))
    assert (noted.marks("j"), noted.marks("k")) == (None, other)
    noted.committed()
    after = noted.marks("j")
    assert after is not None
    assert (after[0] == before[0], after[1] == before[1], noted.marks("k")) == (True, False, other)


def test_of_a_batch_that_was_not_kept_nothing_is_told_until_another_is() -> None:
    noted = UnusualPackages()
    note(noted, retried("j", state="DONE"))
    assert noted.marks("j") is None
    note(noted)
    noted.committed()
    assert noted.marks("j") == (1, 1)


def test_a_job_that_is_forgotten_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "REMEMBERED_MAX", 2)
    noted = UnusualPackages()
    marks = [noted.marks("j")]
    for job in ("j", "k", "l", "m"):
        note(noted, retried(job, state="DONE"))
        noted.committed()
        marks.append(noted.marks("j"))
    assert marks == [(0, 0), (1, 1), (1, 1), (3, 3), (3, 3)]
