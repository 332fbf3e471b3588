"""A disk on which nothing more can be made while results get their names: none of them or all, and the same run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, own_mounts, place_in

# The command takes every name that the disk can still hold, and gives two back: for the two files that are staged, but
# not for the folder of one of them.
DOCUMENT = """
pilotage: 1
job: crowded
stages:
  - outputs: [a.txt, deep/b.txt]
    shell: |
      echo x >> "$PILOTAGE_FOLDER/tries"
      number=0
      while touch "$PILOTAGE_FOLDER/fill-$number" 2>/dev/null; do number=$((number + 1)); done
      rm "$PILOTAGE_FOLDER/fill-0" "$PILOTAGE_FOLDER/fill-1"
      mkdir deep
      echo a > a.txt
      echo b > deep/b.txt
"""
READER = """
  - inputs: [a.txt, deep/b.txt]
    outputs: [both.txt]
    shell: cat a.txt deep/b.txt > both.txt
"""


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Place]:
    """A folder that holds sixty-four names, with its state elsewhere."""
    results = tmp_path / "results"
    results.mkdir()
    with own_mounts() as mounts:
        mounts.mount("-t", "tmpfs", "-o", "size=4m,nr_inodes=64", "tmpfs", str(results))
        with place_in(results, mounts=mounts) as place:
            place.state_at(tmp_path / "state")
            place.seen("tries").touch()
            yield place


def room(place: Place) -> None:
    """Let the disk hold names again."""
    for file in place.seen(".").glob("fill-*"):
        file.unlink()


def names(place: Place) -> list[str]:
    """What is published of the two files."""
    return [name for name in ("a.txt", "deep/b.txt") if place.seen(name).exists()]


@pytest.mark.parametrize("more", ["", READER], ids=["the last", "with a reader"])
def test_where_one_result_gets_no_name_none_does_and_the_same_run_goes_on_when_there_is_room(
    crowded: Place, more: str
) -> None:
    crowded.document(DOCUMENT + more)
    told = crowded.told("run", code=3)
    assert names(crowded) == []
    assert told["failures"][0]["card"]["reason"] == "not-published"
    assert "No space left on device" in told["stuck"]
    room(crowded)
    again = crowded.told("run")
    assert again["job"] == told["job"]
    assert [crowded.seen(name).read_text() for name in names(crowded)] == ["a\n", "b\n"]
    assert crowded.seen("tries").read_text() == "x\n"  # it was not run again
    if more:
        assert crowded.seen("both.txt").read_text() == "a\nb\n"
        (attempt,) = [
            each for each in crowded.told("status", f"{told['job']}/2.1.1")["attempts"] if each["exit_code"] is not None
        ]
        assert attempt["exit_code"] == "SUCCESS"  # it waited for what it reads, and has not failed
