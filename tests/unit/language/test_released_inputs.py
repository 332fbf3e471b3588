"""Files in the tree of an earlier job that packages release: which outputs of that job they are."""

from __future__ import annotations

from pilotage.language import MemoryFolder, plan_of
from pilotage.language.expansion.lists import earlier_outputs
from pilotage.language.released_inputs import released_names
from tests.kit.jobs import OneJob, expanded

EACH = """\
stages:
  - each: {f: {files: "*.root", job: made%s}}
    run: merge
    inputs: [{name: "{f}", disposition: release}, calibration.dat]
    outputs: ["all-{tag}"]
"""
NAMES = ["a 1.root", "b.root", "c.root"]
MADE = OneJob("made", NAMES)
THERE = MemoryFolder(dict.fromkeys([*NAMES, "calibration.dat", "mine.dat"], b""))


def released(stages: str) -> list[list[str]]:
    """The locators that each package releases."""
    plan = plan_of(expanded(stages, folder=THERE, jobs=MADE))
    assert plan.releases is not None
    return [list(plan.releases(number)) for number in range(plan.count)]


def test_a_package_releases_the_file_that_it_names() -> None:
    assert released(EACH % "") == [["job:made-id/a%201.root"], ["job:made-id/b.root"], ["job:made-id/c.root"]]


def test_a_package_of_a_group_releases_all_of_it() -> None:
    assert released(EACH % ", group: 2") == [["job:made-id/a%201.root", "job:made-id/b.root"], ["job:made-id/c.root"]]


def test_a_job_that_releases_nothing_has_no_such_plan() -> None:
    assert (
        plan_of(
            expanded((EACH % "").replace("disposition: release", "disposition: ''"), folder=THERE, jobs=MADE)
        ).releases
        is None
    )


def test_files_in_a_folder_below_are_named_as_their_own_job_names_them() -> None:
    lists = {"job:made": ("made-1", "runs/one"), "job:made:*": ("runs/one/a.root", "runs/one/sub/b.root")}
    assert earlier_outputs(lists) == {
        "runs/one/a.root": "job:made-1/a.root",
        "runs/one/sub/b.root": "job:made-1/sub/b.root",
    }


def test_names_that_no_earlier_job_made_are_told() -> None:
    stages = (EACH % "").replace("calibration.dat", "{name: mine.dat, disposition: release}")
    found = released_names(expanded(stages, folder=THERE, jobs=MADE))
    assert (found.jobs, found.unknown) == (frozenset({"made-id"}), ("mine.dat",))
