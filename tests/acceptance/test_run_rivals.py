"""Two jobs of one folder whose patterns turn out to make the same file: nothing is written over, and both can end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in, wait_until

FIRST = """
pilotage: 1
job: first
stages:
  - shell: "echo first > same.dat"
    outputs: ["s*.dat"]
  - shell: "until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done"
"""
SECOND = """
pilotage: 1
job: second
stages:
  - shell: "echo second > same.dat; echo more > second.dat"
    outputs: ["*.dat"]
  - run: cat same.dat
    inputs: ["same.dat"]
"""

# A file of somebody else comes while it runs: what a pattern makes is not known before.
LAST = """
pilotage: 1
job: last
stages:
  - shell: "echo 1 > q-1; echo 2 > q-2; echo mine > $PILOTAGE_FOLDER/q-2"
    outputs: ["q-*"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        (tmp_path / "first.yaml").write_text(FIRST)
        (tmp_path / "second.yaml").write_text(SECOND)
        yield made
        (tmp_path / "go").touch()


def test_what_would_replace_a_file_of_another_unfinished_job_is_not_granted_until_that_is_gone(place: Place) -> None:
    first = place.begin("run", "first.yaml", "--slots", "2")
    same = place.folder / "same.dat"
    wait_until(same.exists, "the first job's file")
    told = place.told("run", "second.yaml", code=1)
    assert same.read_text() == "first\n"
    assert told["done"] == 0  # nothing counts as made that has no names
    assert not (place.folder / "second.dat").exists()
    assert "the outputs of 1.1.1 cannot be published" in told["stuck"]
    assert "which had not ended when this job was submitted, has made another file of this name" in told["stuck"]
    assert "same.dat" in told["stuck"]
    assert told["next_step"].endswith(f"then: pilotage release {told['job']}/1.1.1")
    assert told["stuck"].partition(": ")[2] in place.run("explain", f"{told['job']}/1.1.1").stdout

    # Who reads that file is not begun: what it waits for is not there.
    assert place.told("status", f"{told['job']}/2.1.1")["attempts"] == []

    # Also when the other has ended, and with another service: what it has made was not there when this job was begun.
    (place.folder / "go").touch()
    place.ended(first)
    place.run("release", f"{told['job']}/1.1.1")
    assert "made another file of this name" in place.run("attach", told["job"], code=1).stdout
    place.run("serve", "--stop")
    assert place.told("run", "second.yaml", code=1)["job"] == told["job"]
    assert same.read_text() == "first\n"

    same.rename(place.folder / "kept.dat")
    place.run("release", f"{told['job']}/1.1.1")
    place.run("attach", told["job"])
    assert same.read_text() == "second\n"
    assert (place.folder / "second.dat").read_text() == "more\n"
    assert (place.folder / "kept.dat").read_text() == "first\n"
    (attempt,) = place.told("status", f"{told['job']}/1.1.1")["attempts"]  # it was run once
    assert attempt["exit_code"] == "SUCCESS"


def test_a_job_that_comes_later_replaces_what_one_that_is_over_has_made(place: Place) -> None:
    (place.folder / "go").touch()
    place.run("run", "first.yaml")
    place.run("run", "second.yaml")
    assert (place.folder / "same.dat").read_text() == "second\n"


def test_a_job_whose_last_files_got_no_names_says_so_wherever_it_is_asked(place: Place) -> None:
    place.document(LAST)
    job = place.told("run", code=3)["job"]
    assert not (place.folder / "q-1").exists()  # none of a package, where one is in the way
    for served in (True, False):
        shown = place.run("status", job).stdout
        assert shown.startswith(f"{job}: DONE (held)\n")
        assert "not-published" in shown
        assert place.told("status", job)["progress"]["failures"][0]["card"]["reason"] == "not-published"
        if served:
            assert "cannot be published" in place.run("explain", f"{job}/1.1.1").stdout
            assert "this file exists, and pilotage did not make it" in shown
            place.run("serve", "--stop")
    assert "not published" in place.run("explain", f"{job}/1.1.1").stdout
    assert "not published" in place.run("status", job).stdout
    place.run("attach", job, code=3)
    (place.folder / "q-2").unlink()
    place.run("release", job)
    place.run("attach", job)
    assert [(place.folder / name).read_text() for name in ("q-1", "q-2")] == ["1\n", "2\n"]
    place.run("serve", "--stop")
    assert "its outputs are there" in place.run("explain", f"{job}/1.1.1").stdout
