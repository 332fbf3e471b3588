"""Files in the tree of an earlier job that a later job names and releases: they go when it has read them, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in, wait_until

MADE = """
pilotage: 1
job: made
stages:
  - each: {n: 1..3}
    shell: "echo small {n} > 'small {n}.txt'; echo log {n} > {n}.log"
    outputs: ["small {n}.txt", "{n}.log"]
"""
MERGE = """
pilotage: 1
job: merge
stages:
  - each: {part: {files: "*small *.txt", job: made, group: 10}}
    shell: "cat {inputs} > all.txt"
    inputs: [{name: "{part}", disposition: release}]
    outputs: [all.txt]
"""
UNKNOWN = """
pilotage: 1
job: unknown
stages:
  - shell: "cat mine.txt > all.txt"
    inputs: [{name: mine.txt, disposition: release}]
    outputs: [all.txt]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        (place.folder / "made.yaml").write_text(MADE)
        (place.folder / "merge.yaml").write_text(MERGE)
        yield place


def test_files_of_an_earlier_job_go_when_the_package_that_releases_them_is_done(place: Place) -> None:
    made = place.told("run", "--detach", "made.yaml")["job"]
    place.run("attach", made)
    (place.folder / "small mine.txt").write_text("mine\n")
    place.run("run", "merge.yaml")
    wait_until(lambda: not (place.folder / "small 1.txt").exists(), "a file that is gone")
    wait_until(
        lambda: sorted(path.name for path in place.folder.glob("*small*")) == ["small mine.txt"], "only my own file"
    )
    assert (place.folder / "all.txt").read_text() == "small 1\nsmall 2\nsmall 3\n"
    assert len(list(place.folder.glob("*.log"))) == 3, "they were not released"
    assert "FilesRemoved" in place.run("events", made).stdout


def test_a_file_that_no_earlier_job_made_cannot_be_released(place: Place) -> None:
    (place.folder / "mine.txt").write_text("mine\n")
    (place.folder / "unknown.yaml").write_text(UNKNOWN)
    refused = place.run("run", "unknown.yaml", code=2)
    assert "the input 'mine.txt' cannot be released: no earlier job" in refused.stdout + refused.stderr
    assert (place.folder / "mine.txt").exists()
