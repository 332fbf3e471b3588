"""A state folder of which something is lost, or that is older than the results: the book and what lies there decide."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, end_all, place_in, wait_until

# What each package did is counted; the last waits for a file, so that a test decides when it goes on.
DOCUMENT = """\
pilotage: 1
job: parts
stages:
  - each: {n: 1..3}
    shell: |
      echo {n} >> $PILOTAGE_FOLDER/ran
      echo part {n} > part-{n}.txt
    outputs: ["part-{n}.txt"]
  - shell: |
      echo sum >> $PILOTAGE_FOLDER/ran
      until test -e $PILOTAGE_FOLDER/go; do sleep 0.05; done
      cat part-*.txt > sum.txt
    inputs: ["part-*.txt"]
    outputs: [sum.txt]
"""
SUM = "part 1\npart 2\npart 3\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        made.document(DOCUMENT)
        yield made


def ran(place: Place) -> list[str]:
    return (place.folder / "ran").read_text().split()


def stopped_before_the_sum(place: Place) -> None:
    """The parts are there, and the run was stopped in the midst of the sum; no service is left."""
    process = place.begin("run", "--slots", "2")
    wait_until(lambda: (place.folder / "ran").exists() and "sum" in ran(place), "the last package")
    process.send_signal(signal.SIGINT)
    place.ended(process, code=3)
    end_all(place.state)


def remove_index(place: Place) -> None:
    for file in place.state.glob("work.sqlite*"):
        file.unlink()


def test_a_run_goes_on_with_what_it_made_though_the_index_is_lost(place: Place) -> None:
    stopped_before_the_sum(place)
    remove_index(place)
    (place.folder / "part-2.txt").unlink()  # as somebody would who was told that it is not ours
    (place.folder / "go").touch()
    told = place.run("run")
    assert "it was started before and continues; 1 package of it run again, since their outputs are gone" in told.stderr
    assert sorted(ran(place)) == ["1", "2", "2", "3", "sum", "sum"]
    assert (place.folder / "sum.txt").read_text() == SUM


def test_results_that_an_older_book_does_not_know_are_kept_and_the_way_out_is_named(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stopped_before_the_sum(place)
    older = tmp_path_factory.mktemp("older") / "state"
    shutil.copytree(place.state, older, ignore=shutil.ignore_patterns("*.sock"))
    (place.folder / "go").touch()
    place.run("run")
    end_all(place.state)
    shutil.rmtree(place.state)
    older.rename(place.state)
    refused = place.run("run", code=2)
    assert "that pilotage did not make, or that was changed since: sum.txt" in refused.stderr
    assert "--replace" in refused.stderr
    sum_file = place.folder / "sum.txt"
    sum_file.write_text("better\n")
    assert "--replace" in place.run("run", "--fresh", code=2).stderr
    told = place.run("run", "--replace")
    assert "the existing sum.txt will be kept as sum.txt.~1~" in told.stderr
    assert ran(place).count("1") == 1  # the parts were adopted
    assert sum_file.read_text() == SUM
    assert (place.folder / "sum.txt.~1~").read_text() == "better\n"
