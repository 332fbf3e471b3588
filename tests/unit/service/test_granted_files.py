"""Which files are ours by the book: a lost index costs adoption, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotage.adapters.stores.folder_tree import FolderTree
from pilotage.adapters.stores.results_index import SqliteResultsIndex
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import OutputFile
from pilotage.ports import NotOurs
from pilotage.service.jobs.output_claims import GrantedFiles
from pilotage.service.jobs.submission import Prepared, prepare
from tests.kit.earlier_work import Place, place
from tests.kit.sqlite_books import keep

TEXT = "pilotage: 1\njob: j\nstages:\n  - each: {n: 1..2}\n    run: make {n}\n    outputs: ['{n}.dat']\n"
SHA256 = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("1.dat", "2.dat")}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as made:
        yield made


class Told:
    """Tells the book of one job, as its engine and an agent would."""

    def __init__(self, here: Place) -> None:
        self._here = here
        self._n = 0
        self.job = here.prepare(TEXT)
        self.say("JobRegistered", self.job.registered)

    def say(self, kind: str, data: Any, *, package: str | None = None, attempt: int | None = None) -> None:
        self._n += 1
        event = Event(
            source="agent" if kind == "AttemptFinished" else "service", stream="s", n=self._n, type=kind, time=float(self._n), job=self.job.job,
            package=package, attempt=attempt, data=msgspec.Raw(msgspec.json.encode(data)),
        )  # fmt: skip
        keep(self._here.journal, [event])

    def made(self, package: str, name: str) -> None:
        """An attempt has finished with a file, which is there."""
        (self._here.folder / name).write_text(name)
        file = OutputFile(name=name, size_bytes=len(name), sha256=SHA256[name])
        self.say("AttemptCreated", {"site": "local"}, package=package, attempt=1)
        self.say("AttemptFinished", {"exit_code": "SUCCESS", "manifest": [file]}, package=package, attempt=1)

    def granted(self, package: str) -> None:
        self.say("CommitGranted", {}, package=package, attempt=1)


def without_an_index(here: Place) -> tuple[FolderTree, SqliteResultsIndex]:
    """A store whose index knows nothing, with the book to learn from."""
    state = here.folder / ".pilotage" / "lost"
    index = SqliteResultsIndex(WorkDatabase(state))
    return FolderTree(here.folder / ".pilotage", index, learn=GrantedFiles(here.journal, index).learn), index


def prepared(here: Place, tree: FolderTree, index: SqliteResultsIndex) -> Prepared:
    return prepare(here.submission(TEXT), journal=here.journal, tree=tree, index=index, owner="ada")


def test_what_was_granted_is_ours_though_the_index_is_lost(here: Place) -> None:
    told = Told(here)
    for package, name in (("1.1.1", "1.dat"), ("1.2.1", "2.dat")):
        told.made(package, name)
        told.granted(package)
    tree, index = without_an_index(here)
    assert prepared(here, tree, index).adopted == ()
    assert index.maker(str(here.folder), "1.dat", sha256=SHA256["1.dat"]) == told.job.job
    (here.folder / "1.dat").write_text("1!dat")  # of the same size
    with pytest.raises(NotOurs, match=r"changed since: 1\.dat\n") as refused:
        prepared(here, tree, index)
    assert "--replace" in refused.value.next_step
    index.close()


def test_what_was_made_and_not_granted_is_not_ours_until_it_is(here: Place) -> None:
    told = Told(here)
    told.made("1.1.1", "1.dat")
    tree, index = without_an_index(here)
    with pytest.raises(NotOurs, match=r"1\.dat"):
        prepared(here, tree, index)
    told.granted("1.1.1")
    prepared(here, tree, index)
    index.close()


def test_an_index_that_was_begun_anew_learns_everything_again(here: Place) -> None:
    told = Told(here)
    told.made("1.1.1", "1.dat")
    told.granted("1.1.1")
    tree, index = without_an_index(here)
    prepared(here, tree, index)
    index.path.write_bytes(b"no database, whatever it was")
    index.path.with_name("work.sqlite-wal").write_bytes(b"")
    (here.folder / "2.dat").write_text("theirs")
    with pytest.raises(NotOurs, match=r"2\.dat"):
        prepared(here, tree, index)
    (here.folder / "2.dat").unlink()
    prepared(here, tree, index)
    index.close()
