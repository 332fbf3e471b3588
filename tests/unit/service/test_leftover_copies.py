"""Copies in stores of attempts that were never granted go, exactly these, also if the service dies in between."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NoReturn

import pytest

from pilotage.adapters.stores.folder import FolderStore
from pilotage.adapters.stores.put_copies import SqlitePutCopies
from pilotage.adapters.stores.work_database import WorkDatabase
from pilotage.app.store_registry import StoreRegistry
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.put_copies import PutCopy
from pilotage.service.transfers.fetching import RetryPolicy
from pilotage.service.transfers.leftover_copies import OwnCopies, Standing
from pilotage.service.transfers.meter import Meter
from pilotage.service.transfers.storing import OutputCopy, store_copy
from pilotage.service.works.stored_copies import standing_of
from tests.kit.served_book import sqlite_journal

FIRST, SECOND = AttemptRef("j", "1.1.1", 1), AttemptRef("j", "1.1.1", 2)


class Archive:
    """A folder with copies, and a database of what was put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores = StoreRegistry({})
        self.standing: dict[AttemptRef, Standing] = {}
        self.begin()

    def begin(self) -> None:
        """Another service takes over."""
        self.notes = SqlitePutCopies(WorkDatabase(self.folder / "state"))
        self.own = OwnCopies(self.notes)

    def locator(self, name: str) -> str:
        """Where a copy is."""
        return f"file://{self.folder}/archive/{name}"

    def owed(self, name: str, content: bytes, *, replaceable: bytes | None = None) -> OutputCopy:
        """A copy of a staged file."""
        source = self.folder / hashlib.sha256(content).hexdigest()
        source.write_bytes(content)
        earlier = frozenset({hashlib.sha256(replaceable).hexdigest()} if replaceable is not None else ())
        return OutputCopy(
            name=name, source=str(source), size_bytes=len(content), sha256=source.name, locator=self.locator(name),
            replaceable=earlier,
        )  # fmt: skip

    def put(self, ref: AttemptRef, name: str, content: bytes, *, replaceable: bytes | None = None) -> None:
        """An attempt stores a file."""
        copy = self.owed(name, content, replaceable=replaceable)
        with self.own.writing(ref, copy) as before_put:
            store_copy(
                FolderStore(), copy, meter=_started(), allowed_seconds=lambda _: 60.0,
                policy=RetryPolicy(tries=1), before_put=before_put,
            )  # fmt: skip

    def remove(self, **standing: Standing) -> int:
        """Remove leftovers; `first` and `second` are the attempts of a package."""
        known = {FIRST: standing.get("first", "open"), SECOND: standing.get("second", "open")}
        return self.own.remove_leftovers(self.stores, known.__getitem__)

    def there(self) -> dict[str, bytes]:
        """The files in the archive."""
        found = (self.folder / "archive").rglob("*")
        return {path.name: path.read_bytes() for path in found if path.is_file()}


def _started() -> Meter:
    meter = Meter()
    meter.start()
    return meter


def test_what_an_attempt_stored_goes_when_it_was_never_granted(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")
    archive.put(SECOND, "b", b"two")
    assert archive.remove() == 0
    assert archive.there() == {"a": b"one", "b": b"two"}
    assert archive.remove(first="never-granted", second="granted") == 0
    assert archive.there() == {"b": b"two"}
    assert archive.notes.noted() == []


def test_the_next_service_removes_what_a_killed_one_left_also_half_of_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")
    copy = archive.owed("b", b"two")
    archive.notes.note(PutCopy(ref=FIRST, locator=copy.locator, sha256=copy.sha256))  # it died before it put that
    archive.begin()
    assert archive.remove(first="never-granted") == 0
    assert archive.there() == {}
    assert archive.notes.noted() == []


def test_a_successor_with_the_same_name_keeps_its_copy_whether_it_replaced_or_found_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "replaced", b"one")
    archive.put(SECOND, "replaced", b"two", replaceable=b"one")
    archive.put(FIRST, "found", b"same")
    archive.put(SECOND, "found", b"same")
    assert archive.remove(first="never-granted", second="open") == 0
    assert archive.there() == {"replaced": b"two", "found": b"same"}
    assert archive.remove(first="never-granted", second="granted") == 0
    assert archive.there() == {"replaced": b"two", "found": b"same"}


def test_what_another_attempt_found_there_while_leftovers_are_looked_at_stays(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")

    def standing_of(ref: AttemptRef) -> Standing:
        archive.put(SECOND, "a", b"one")  # after the notes were read
        return "never-granted"

    assert archive.own.remove_leftovers(archive.stores, standing_of) == 1
    assert archive.there() == {"a": b"one"}
    assert archive.remove(first="never-granted", second="granted") == 0
    assert archive.there() == {"a": b"one"}


def test_a_copy_stays_once_nothing_tells_whether_it_was_granted(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")
    assert archive.remove(first="unknown") == 0
    assert archive.there() == {"a": b"one"}
    assert archive.notes.noted() == []


def test_of_a_job_that_the_book_has_no_more_nobody_knows_whether_an_attempt_was_granted(tmp_path: Path) -> None:
    with sqlite_journal(tmp_path) as journal:
        assert standing_of(journal, FIRST) == "unknown"


def test_what_was_granted_is_settled_before_another_copy_gives_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")
    archive.put(SECOND, "b", b"two")

    def broken(locator: str, *, user: str) -> NoReturn:
        raise OSError("disk")

    monkeypatch.setattr(archive.stores, "find", broken)
    with pytest.raises(OSError, match="disk"):
        archive.remove(first="never-granted", second="granted")
    assert [each.ref for each in archive.notes.noted()] == [FIRST]


def test_what_was_found_by_one_that_fails_too_goes_with_the_last_of_them(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "found", b"same")
    archive.put(SECOND, "found", b"same")
    assert archive.remove(first="never-granted", second="open") == 0
    assert archive.there() == {"found": b"same"}
    assert archive.remove(second="never-granted") == 0
    assert archive.there() == {}


def test_files_of_others_stay_though_they_are_equal_or_took_the_place_of_a_copy(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "before").write_bytes(b"same")
    archive.put(FIRST, "before", b"same")
    archive.put(FIRST, "after", b"one")
    (tmp_path / "archive" / "after").write_bytes(b"by somebody else")
    assert archive.remove(first="never-granted") == 0
    assert archive.there() == {"before": b"same", "after": b"by somebody else"}
    assert archive.notes.noted() == []


def test_a_copy_that_is_being_written_is_removed_later(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.put(FIRST, "a", b"one")
    with archive.own.writing(SECOND, archive.owed("a", b"one")):
        assert archive.remove(first="never-granted") == 1
        assert archive.there() == {"a": b"one"}
    assert archive.remove(first="never-granted", second="never-granted") == 0
    assert archive.there() == {}
