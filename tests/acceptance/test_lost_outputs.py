"""Outputs that are lost while packages still need them, in a real run: exactly what is missing is made again, at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in

# The third package of the first stage removes an output of the first one, once, when that was published.
DOCUMENT = """
pilotage: 1
job: lossy
stages:
  - lines:
      - shell: "echo one >> {notes}/ran; echo 1 > a-1.txt"
        outputs: [a-1.txt]
      - shell: "echo two >> {notes}/ran; echo 2 > a-2.txt"
        outputs: [a-2.txt]
      - shell: "until test -e {folder}/a-1.txt; do sleep 0.1; done; rm {folder}/a-1.txt; echo three >> {notes}/ran; echo 3 > a-3.txt"
        outputs: [a-3.txt]
  - shell: "cat a-1.txt a-2.txt a-3.txt > all.txt"
    inputs: [a-1.txt, a-2.txt, a-3.txt]
    outputs: [all.txt]
"""

# What the first package makes depends on how often it ran. It is removed once its first reader is done.
UNEQUAL = """
pilotage: 1
job: unequal
stages:
  - shell: "echo run >> {notes}/ran; wc -l < {notes}/ran > a.txt"
    outputs: [a.txt]
  - lines:
      - shell: "cat a.txt > one.txt"
        inputs: [a.txt]
        outputs: [one.txt]
      - shell: "until test -e {folder}/one.txt; do sleep 0.1; done; rm {folder}/a.txt; echo > gone.txt"
        outputs: [gone.txt]
  - shell: "cat a.txt gone.txt > two.txt"
    inputs: [a.txt, gone.txt]
    outputs: [two.txt]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "job").mkdir()
    with place_in(tmp_path / "job") as made:
        yield made


def test_a_lost_input_is_made_again_at_once_and_nothing_else(place: Place, tmp_path: Path) -> None:
    text = DOCUMENT.format(notes=tmp_path, folder=place.folder)
    (place.folder / "pilotage.yaml").write_text(text)
    place.run("run")
    assert (place.folder / "all.txt").read_text() == "1\n2\n3\n"
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(ran) == ["one", "one", "three", "two"]
    told = place.run("explain", f"{place.told('status')['job']['id']}/1.1.1").stdout
    assert "a-1.txt" in told


def test_what_was_made_from_other_contents_is_stale_until_it_is_run_again(place: Place, tmp_path: Path) -> None:
    (place.folder / "pilotage.yaml").write_text(UNEQUAL.format(notes=tmp_path, folder=place.folder))
    summary = place.run("run").stdout
    assert [(place.folder / name).read_text().split() for name in ("one.txt", "two.txt")] == [["1"], ["2"]]
    job = place.told("status")["job"]["id"]
    for text in (summary, place.run("status", job).stdout, place.run("outputs", job).stderr):
        assert "1 result is stale: inputs were made again with other contents than were read" in text
        assert f"run it again with: pilotage retry --force {job}/2.1.1" in text
    [stale] = place.told("status", job)["progress"]["stale_results"]
    assert (stale["package"], stale["files"]) == ("2.1.1", ["a.txt"])
    assert place.told("outputs", job)["stale"] == ["2.1.1"]
    assert "read a.txt, made again since" in place.run("status", f"{job}/2.1.1").stdout
    assert place.told("status", f"{job}/2.1.1")["stale"] == ["a.txt"]
    assert "stale: it read a.txt, made again since" in place.run("outputs", f"{job}/2.1.1").stderr
    assert place.told("outputs", f"{job}/2.1.1")["stale"]
    told = place.run("explain", f"{job}/2.1.1").stdout
    assert "its results are stale: a.txt was made again with another content than it read" in told
    assert f"pilotage retry --force {job}/2.1.1" in told
    assert "stale" not in place.run("explain", f"{job}/3.1.1").stdout
    assert '"type":"InputsRemade"' in place.run("book", "dump", job).stdout
    planned = place.run("plan").stdout
    assert "1 of 4 packages would run" in planned
    assert "why: input a.txt" in planned
    place.run("retry", "--force", f"{job}/2.1.1")
    place.run("attach", job)
    assert (place.folder / "one.txt").read_text().split() == ["2"]
    assert "stale" not in place.run("explain", f"{job}/2.1.1").stdout
    assert "stale" not in place.run("status", job).stdout
    assert "stale" not in place.told("outputs", job)
