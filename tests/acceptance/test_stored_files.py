"""Files of stores in a real run: brought once, stored before the grant, deleted on purpose, and not made again for that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in

DOCUMENT = """
pilotage: 1
job: brought
stages:
  - each: {{n: 1..3}}
    shell: "sha256sum in.dat > sum-{{n}}.txt"
    inputs: [{{name: in.dat, locator: "file://{store}/in.dat"}}]
    outputs: [{{name: "sum-{{n}}.txt", dispositions: [forward, deletable]}}]
  - shell: "cat sum-*.txt > all.txt"
    inputs: ["sum-*.txt"]
    outputs: [{{name: all.txt, dispositions: [store]}}]
"""
SETTINGS = """
[stores.tape]
url = "file://{tape}"
[files]
archive = ["tape"]
"""


class Stored:
    """A folder with a document, a store with its input, and an archive."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.place = place
        self.store, self.tape = folder / "store", folder / "tape"
        self.store.mkdir()
        self.tape.mkdir()
        self.content = os.urandom(2_500_000)
        (self.store / "in.dat").write_bytes(self.content)
        (place.folder / "pilotage.yaml").write_text(DOCUMENT.format(store=self.store))
        (place.folder / "pilotage.toml").write_text(SETTINGS.format(tape=self.tape))

    def archived(self) -> list[bytes]:
        """The archived files."""
        return [path.read_bytes() for path in sorted(self.tape.rglob("*")) if path.is_file()]

    def made(self) -> list[str]:
        """The results in the folder."""
        return sorted(path.name for path in self.place.folder.glob("*.txt"))

    def cached(self) -> list[Path]:
        """The files in the cache of this computer."""
        return [path for path in (self.place.folder / ".pilotage/cache").rglob("*") if path.is_file()]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    (tmp_path / "job").mkdir()
    with place_in(tmp_path / "job") as place:
        yield Stored(tmp_path, place)


def test_files_are_brought_stored_deleted_on_purpose_and_made_again_only_when_needed(stored: Stored) -> None:
    stored.place.run("run")
    line = f"{hashlib.sha256(stored.content).hexdigest()}  in.dat\n".encode()
    assert stored.archived() == [3 * line]
    assert [path.read_bytes() for path in stored.cached()] == [stored.content], "it is brought once"
    assert stored.made() == ["all.txt"], "what is deletable goes after its last consumer"
    assert "nothing to do" in stored.place.run("run").stdout
    planned = stored.place.run("plan").stdout
    assert "3 packages are not run again: outputs that are missing were deleted on purpose" in planned
    (stored.place.folder / "all.txt").unlink()
    assert "deleted on purpose, and needed again" in stored.place.run("plan").stdout
    stored.place.run("run")
    assert stored.archived() == [3 * line] * 2
    assert stored.made() == ["all.txt"]


def test_a_copy_that_cannot_be_stored_holds_its_package_and_says_why(stored: Stored) -> None:
    stored.tape.rmdir()
    stored.tape.write_text("not a folder")
    done = stored.place.run("run", code=1)
    assert "all.txt" in done.stdout + done.stderr
    assert "could not be stored" in done.stdout + done.stderr
    assert "cannot be published" not in done.stdout + done.stderr
    assert not (stored.place.folder / "all.txt").exists(), "it is not granted"
    stored.tape.unlink()
    job = stored.place.told("status")["job"]["id"]
    stored.place.run("release", f"{job}/2.1.1")
    stored.place.run("run")
    assert len(stored.archived()) == 1
    assert stored.made() == ["all.txt"]


EXACT = """
pilotage: 1
job: exact
stages:
  - shell: "cat in.dat > out.txt"
    inputs: [{{name: in.dat, locator: "file://{store}/in.dat", sha256: "{sha256}"}}]
    outputs: [out.txt]
"""


def test_a_wrong_checksum_in_the_document_holds_its_package_at_once_and_a_corrected_document_goes_on(
    stored: Stored,
) -> None:
    place, real = stored.place, hashlib.sha256(stored.content).hexdigest()
    place.document(EXACT.format(store=stored.store, sha256="0" * 64))
    told = place.run("run", code=1)
    words = told.stdout + told.stderr
    assert (
        f"(input-checksum): the store has another content than the document requires; expected sha256 {'0' * 64}"
        in words
    )
    assert f"got sha256 {real}" in words
    job = place.told("status")["job"]["id"]
    explained = place.run("explain", f"{job}/1.1.1").stdout
    assert "platform-failure" not in explained
    assert explained.index("input-checksum") < explained.index("it is held")
    assert "hibernat" not in place.run("status", job).stdout
    assert stored.cached() == [], "what nobody may use is not kept"
    place.document(EXACT.format(store=stored.store, sha256=real))
    place.run("run")
    assert (place.folder / "out.txt").read_bytes() == stored.content


def test_the_same_document_goes_on_when_its_missing_file_is_there(stored: Stored) -> None:
    place, missing = stored.place, stored.store / "in.dat"
    missing.unlink()
    place.document(EXACT.format(store=stored.store, sha256=hashlib.sha256(stored.content).hexdigest()))
    told = place.run("run", code=1)
    assert "(not-in-store)" in told.stdout + told.stderr
    missing.write_bytes(stored.content)
    place.run("run")
    assert (place.folder / "out.txt").read_bytes() == stored.content
