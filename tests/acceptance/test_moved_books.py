"""Jobs that move from book to book, and books that are copied while they are written: what is there goes on as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.real_runs import Place, place_in, wait_until

JOB = """pilotage: 1
job: {name}
stages:
  - each: {{n: 1..3}}
    run: sh -c 'echo {{n}} > {name}-{{n}}.txt'
    outputs: ["{name}-{{n}}.txt"]
"""
WAITING = """pilotage: 1
job: waiting
stages:
  - run: sh -c 'touch {folder}/begun; while [ ! -e {folder}/go ]; do sleep 0.1; done; touch made'
    outputs: [made]
"""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Place]]:
    """Three folders of three services."""
    with ExitStack() as stack:
        made = []
        for name in ("one", "two", "three"):
            (tmp_path / name).mkdir()
            made.append(stack.enter_context(place_in(tmp_path / name)))
        yield made


def jobs_of(place: Place) -> dict[str, str]:
    return {job["name"]: job["state"] for job in place.told("query", "--jobs", "all")["jobs"]}


def test_jobs_of_several_services_are_loaded_into_one_book_and_the_next_job_runs_there(places: list[Place]) -> None:
    one, two, into = places
    for place, name in ((one, "first"), (two, "second")):
        place.document(JOB.format(name=name))
        place.run("run")
        place.run("book", "dump", "--all", "-o", "dump")  # its service runs still
    both = into.folder / "both"
    both.write_bytes((one.folder / "dump").read_bytes() + (two.folder / "dump").read_bytes())
    assert into.run("book", "load", "both").stderr.count("loaded job") == 2
    refused = into.run("book", "load", "both", code=2)
    assert "known here already" in refused.stderr
    into.document(JOB.format(name="third"))
    into.run("run")
    assert jobs_of(into) == {"first": "DONE", "second": "DONE", "third": "DONE"}
    assert (into.folder / "third-3.txt").is_file()
    into.run("serve", "--stop")
    assert into.run("book", "check").stdout.endswith("sound\n")


def test_a_job_that_is_loaded_before_it_is_over_waits_until_it_is_released(places: list[Place]) -> None:
    one, other, _ = places
    one.document(WAITING.format(folder=one.folder))
    running = one.begin("run")
    wait_until((one.folder / "begun").exists, "the job to begin")
    one.run("book", "dump", "--all", "-o", "dump")
    loaded = other.run("book", "load", str(one.folder / "dump")).stderr
    (job,) = (json.loads((one.folder / "dump").read_text().splitlines()[0])["job"],)
    assert f"pilotage release {job}" in loaded
    other.document(JOB.format(name="own"))
    other.run("run")
    held = other.told("status", job)["job"]
    assert (held["state"], held["held"]) == ("RUNNING", True)
    (one.folder / "go").touch()
    one.ended(running)
    assert jobs_of(one) == {"waiting": "DONE"}
    (one.folder / "made").unlink()
    other.run("release", job)  # the files are those of its folder, wherever the book is
    wait_until(lambda: jobs_of(other)["waiting"] == "DONE", "the job to go on where it was loaded")


def test_a_backup_that_is_made_beside_a_busy_service_is_whole_and_works_when_it_is_brought_back(
    places: list[Place],
) -> None:
    one, other, _ = places
    # What ran when the copy was made is run again when nothing was heard of its agent for some leases: short ones.
    (other.folder / "pilotage.toml").write_text("[engine]\ninterval_seconds = 1.0\nlease_intervals = 2\n")
    one.document(JOB.format(name="before"))
    one.run("run")
    one.run("serve", "--stop")
    (job,) = one.told("query", "--jobs", "all")["jobs"]
    one.run("book", "seal", job["id"])
    one.document(WAITING.format(folder=one.folder))
    running = one.begin("run")
    wait_until((one.folder / "begun").exists, "the job to begin")
    told = one.told("book", "backup", "saved")
    assert told["jobs"] == 2
    assert "it exists already" in one.run("book", "backup", "saved", code=2).stderr
    (one.folder / "go").touch()
    one.ended(running)
    one.run("serve", "--stop")
    saved = one.folder / "saved"
    assert saved.stat().st_mode & 0o777 == 0o700
    assert one.run("book", "check", "--journal", f"sqlite:{saved}").stdout.endswith("sound\n")
    saved.rename(other.folder / ".pilotage")
    other.document(JOB.format(name="after"))
    other.run("run")
    wait_until(
        lambda: jobs_of(other) == {"before": "DONE", "waiting": "DONE", "after": "DONE"},
        "all to be done that was begun",
    )
    other.run("events", job["id"])  # of the job that was sealed
