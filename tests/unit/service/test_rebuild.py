"""Checking that rows are what the events say, and making them so again."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.adapters.journals.sqlite.journal import BOOK, SqliteJournal
from pilotage.adapters.journals.sqlite.locations import sealed_path
from pilotage.book.rows.rows import StageRow
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.model.events.payloads import NodeDescribed, PilotStarted, SiteDescribed, Tagged
from pilotage.ports import JournalError
from pilotage.service.journal.rebuild import BookCheck, all_packages, check, rebuild
from tests.kit.events import START, Stream, a_short_job, cut, delivered, random_history
from tests.kit.sqlite_books import everything, keep, opened


class Checked:
    """A book, and scratch journals for each look at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "book"
        self.journal = SqliteJournal(self.folder, durable=False)
        self._scratch = folder / "scratch"
        self._number = 0

    def check(self) -> BookCheck:
        self._number += 1
        with opened(self._scratch / str(self._number)) as scratch:
            return check(self.journal, scratch)

    def rebuild(self) -> BookCheck:
        self._number += 1
        with opened(self._scratch / str(self._number)) as scratch:
            return rebuild(self.journal, scratch)

    def corrupt(self, statement: str, *, sealed: str = "") -> None:
        path = sealed_path(self.folder, sealed) if sealed else self.folder / BOOK
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            assert connection.execute(statement).rowcount > 0


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Checked]:
    made = Checked(tmp_path)
    by = Stream("service", "core")
    keep(made.journal, a_short_job("j1", packages=3, stream=by))
    keep(made.journal, a_short_job("j2", packages=2, stream=by))
    world = [
        by.event(PilotStarted(site="lyon"), pilot="p1"),
        by.event(SiteDescribed(kind="slurm"), site="lyon"),
        by.event(NodeDescribed(node="n1", cores=4), pilot="p1"),
        by.event(Tagged(name="study", value="A"), job="j1"),
        by.event(Tagged(name="colour", value="red"), job="j2", package="1.1.1"),
        by.event(Tagged(name="colour", value="red"), job="not-yet"),
    ]
    keep(made.journal, world)
    made.journal.seal("j2")
    yield made
    made.journal.close()


def test_a_sound_book_is_found_sound(book: Checked) -> None:
    verdict = book.check()
    assert verdict.sound, verdict.first
    assert verdict.events == 24
    before = everything(book.folder)
    assert book.rebuild().sound
    assert everything(book.folder) == before


STAGE_COLUMNS = ", ".join("stage + 7" if each == "stage" else each for each in TABLE_BY_ROW[StageRow].columns)
FAULTS = {
    "jobs": "UPDATE jobs SET done = done + 1, name = 'other' WHERE job = 'j1'",
    "stages": "UPDATE stages SET touched = 0",
    "stages, missing": "DELETE FROM stages",
    "stages, made up": f"INSERT INTO stages SELECT {STAGE_COLUMNS} FROM stages",
    "packages": "UPDATE package_facts SET facts = json_set(facts, '$.node', 'elsewhere') WHERE line = 1",
    "packages, missing": "DELETE FROM package_facts WHERE line = 2",
    "packages, made up": "INSERT INTO package_facts SELECT job_id, stage, line + 10, number, state, site, facts FROM package_facts",
    "packages, their events": "UPDATE package_facts SET facts = json_set(facts, '$.positions', json('[1]')) WHERE line = 1",
    "packages, their columns": "UPDATE package_facts SET state = 'RUNNING' WHERE line = 1",
    "tags": "UPDATE tags SET value = 'B'",
    "tags, missing": "DELETE FROM tags WHERE job_id = 1",
    "tags, made up": "INSERT INTO tags VALUES (1, 1, 1, 1, 'x', 'y')",
    "pilots": "UPDATE pilots SET site = 'oslo'",
    "pilots, missing": "DELETE FROM pilots",
    "nodes": "UPDATE nodes SET cores = 5",
    "nodes, made up": "INSERT INTO nodes SELECT node || '2', site, cores, memory_bytes, system, software, environment, updated_at, keys, os_release, kernel, cpu_model, libc FROM nodes",
    "sites": "UPDATE sites SET kind = 'pbs'",
    "streams, too low": "UPDATE streams SET watermark = watermark - 3",
    "streams, too high": "UPDATE streams SET watermark = watermark + 3",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_table_is_checked_and_mended(book: Checked, fault: str) -> None:
    before = everything(book.folder)
    book.corrupt(FAULTS[fault])
    table = fault.partition(",")[0]
    verdict = book.check()
    assert set(verdict.counts) == {table}, verdict.first
    assert verdict.first[0].table == table
    assert book.rebuild().counts == verdict.counts
    assert book.check().sound
    assert everything(book.folder) == before


@pytest.mark.parametrize("fault", ["packages", "packages, missing", "packages, their events", "stages", "tags"])
def test_sealed_jobs_are_checked_and_mended(book: Checked, fault: str) -> None:
    book.corrupt(FAULTS[fault], sealed="j2")
    assert set(book.check().counts) == {fault.partition(",")[0]}
    book.rebuild()
    assert book.check().sound
    row = book.journal.job("j2")
    assert row is not None
    assert row.place == "sealed"


def test_what_comes_after_a_mended_row_builds_on_it(book: Checked) -> None:
    by = Stream("service", "more")
    keep(book.journal, a_short_job("j3", stream=by)[:3])  # one package is on its way
    row = book.journal.job("j3")
    assert row is not None
    (package,) = all_packages(book.journal, row)
    package.facts.bound_site = "mended"
    book.journal.replace_job(row, stages=book.journal.stages(row), packages=[package], tags=[])
    keep(book.journal, [by.event(Tagged(name="a", value="b"), job="j3", package="1.1.1")])
    (package,) = all_packages(book.journal, row)
    assert (package.facts.bound_site, [*package.facts.tags]) == ("mended", ["a"])


def test_a_lost_job_is_told_with_its_number(book: Checked) -> None:
    book.corrupt("DELETE FROM jobs WHERE job = 'j1'")
    verdict = book.check()
    assert verdict.first[0].key == "job_id 1"
    assert not book.rebuild().sound


def test_an_event_that_cannot_be_read_is_told(book: Checked) -> None:
    book.corrupt("""UPDATE events SET data = '{"text":7}' WHERE type = 'CommitGranted' AND line = 1""")
    with pytest.raises(JournalError, match="position 5 cannot be folded again"):
        book.check()


def test_after_a_purge_the_rest_is_still_sound(book: Checked) -> None:
    described = Stream("agent", "a").event(NodeDescribed(node="n2", cores=9), job="j1", package="1.1.1", attempt=1)
    keep(book.journal, [described])
    book.journal.purge("j1", at=1.0)
    assert book.journal.drop_parked(before=START + 1) == 1
    assert book.check().sound
    before = everything(book.folder)
    book.corrupt("UPDATE nodes SET cores = 5 WHERE node = 'n1'")
    book.corrupt("UPDATE streams SET watermark = watermark + 3 WHERE source = 'service'")
    assert book.check().counts == {"nodes": 1, "streams": 1}
    book.corrupt("UPDATE streams SET watermark = watermark - 3 WHERE source = 'service'")
    book.rebuild()
    assert everything(book.folder) == before


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_any_history_folds_again_to_the_same_rows(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    made = Checked(tmp_path_factory.mktemp("book"))
    with closing(made.journal):
        for at, batch in enumerate(cut(delivered(random_history(chance, jobs=3), chance), chance)):
            keep(made.journal, batch, at=START + at // 3)
        for job in ("job-1", "job-2", "job-3"):
            row = made.journal.job(job)
            if row is not None and row.state in ("DONE", "ABORTED", "CANCELLED", "CLEARED"):
                made.journal.seal(job)
        verdict = made.check()
        assert verdict.sound, verdict.first
