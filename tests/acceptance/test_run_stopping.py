"""Ctrl-C where the folder has more than one job: it stops the job that is shown, and nothing else."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.service.announcement import find_service
from tests.kit.real_runs import PROGRAM, SECONDS_MAX, Place, place_in, processes_with, wait_until

# The package waits for a file, so that a test decides when it goes on.
WAITING = """\
pilotage: 1
job: {name}
stages:
  - shell: |
      echo x > $PILOTAGE_FOLDER/started-{name}
      until test -e $PILOTAGE_FOLDER/go-{name}; do sleep 0.05; done
      echo made > {name}.out
    outputs: [{name}.out]
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path, environment={"HOME": str(tmp_path)}) as made:
        for name in "ab":
            (tmp_path / f"{name}.yaml").write_text(WAITING.format(name=name))
        yield made


def begun(place: Place, name: str, *more: str) -> subprocess.Popen[str]:
    """The run of a document, once its package runs."""
    started = place.folder / f"started-{name}"
    started.unlink(missing_ok=True)
    process = place.begin("run", f"{name}.yaml", "--slots", "2", *more)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(f"{name}-")  # it knows its job
    wait_until(started.exists, f"the package of {name}")
    return process


def interrupted(place: Place, process: subprocess.Popen[str]) -> str:
    """What a command says to Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return place.ended(process, code=3).stderr


def states(place: Place) -> dict[str, tuple[str, bool]]:
    """The jobs of a folder: each name with the state and whether it is held."""
    return {each["name"]: (each["state"], each["held"]) for each in place.told("query", "--jobs", "all")["jobs"]}


def test_a_job_that_was_stopped_before_is_no_other_work_and_both_can_be_attached_to(place: Place) -> None:
    interrupted(place, begun(place, "a"))
    said = interrupted(place, begun(place, "b"))
    assert "stopped; the same command continues" in said
    assert find_service(place.state) is None
    for name in "ab":
        (place.folder / f"go-{name}").touch()
        place.run("attach", name)
        assert (place.folder / f"{name}.out").read_text() == "made\n"


def test_a_job_that_was_held_by_hand_is_not_released_by_attach(place: Place) -> None:
    process = begun(place, "a")
    place.run("hold", "a", "--message", "not now")
    interrupted(place, process)
    (place.folder / "go-a").touch()
    assert "held" in place.run("attach", "a", code=3).stdout
    assert not (place.folder / "a.out").exists()


def test_beside_other_work_only_the_job_that_is_shown_is_stopped(place: Place) -> None:
    first, second = begun(place, "a"), begun(place, "b")
    said = interrupted(place, second)
    assert "another terminal" not in said
    assert (
        "stopped; the same command continues where it stopped\n  the service keeps running: it has other jobs" in said
    )
    assert states(place)["b"][1]
    assert not states(place)["a"][1]
    wait_until(lambda: not processes_with("go-b;", str(place.folder)), "the end of what ran of b")
    assert processes_with("go-a;", str(place.folder))
    (place.folder / "go-a").touch()
    assert "1 of 1 package done" in place.ended(first).stdout
    (place.folder / "go-b").touch()
    again = place.run("run", "b.yaml")
    assert "it was started before and continues" in again.stderr
    assert (place.folder / "b.out").read_text() == "made\n"


def test_a_service_is_not_stopped_under_a_command_that_has_only_just_begun(place: Place) -> None:
    first = begun(place, "a")
    service = find_service(place.state)
    # It reads its document from here, so that it has found the service and not submitted its job.
    second = subprocess.Popen(
        [PROGRAM, "run", "-"],
        cwd=place.folder,
        env=place.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lock = str((place.state / "followed.lock").stat().st_ino)
    wait_until(lambda: locks_of(lock) > 2, "the second command to find the service")
    try:
        said = interrupted(place, first)
    finally:
        (place.folder / "go-b").touch()
        told, complaints = second.communicate(WAITING.format(name="b"), timeout=SECONDS_MAX)
    assert "the service keeps running" in said
    assert (second.returncode, "1 of 1 package done" in told) == (0, True), complaints
    assert find_service(place.state) == service


def locks_of(inode: str) -> int:
    """How many locks of a file the system knows."""
    return sum(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_stopped_fresh_run_is_gone_on_with_by_the_command_without_fresh(place: Place) -> None:
    (place.folder / "go-a").touch()
    place.run("run", "a.yaml")
    (place.folder / "go-a").unlink()
    said = interrupted(place, begun(place, "a", "--fresh"))
    assert "stopped; the same command without --fresh continues where it stopped" in said
    (place.folder / "go-a").touch()
    again = place.run("run", "a.yaml")
    assert "it was started before and continues" in again.stderr
    assert "killed" not in again.stderr
    assert "1 of 1 package done\n" in again.stdout


def test_keep_failed_does_not_kill_the_job_that_was_stopped(place: Place) -> None:
    interrupted(place, begun(place, "a"))
    (place.folder / "go-a").touch()
    said = place.run("run", "a.yaml", "--keep-failed").stderr
    assert "continues as it was started, with or without --keep-failed" in said
    assert "killed" not in said


def test_what_runs_at_another_site_goes_on_and_that_is_said(place: Place) -> None:
    sites = "pilotage: 1\nsites:\n  - {name: annex, kind: local, idle_seconds: 1}\n"
    (place.folder / "sites.yaml").write_text(sites)
    document = place.folder / "a.yaml"
    document.write_text(document.read_text().replace("  - shell:", "  - executor: annex\n    shell:"))
    said = interrupted(place, begun(place, "a"))
    (place.folder / "go-a").touch()
    assert "packages running elsewhere continue, and their results are kept: 1 at annex" in said
    place.run("attach", "a")
    assert (place.folder / "a.out").read_text() == "made\n"
