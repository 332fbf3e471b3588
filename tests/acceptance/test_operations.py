"""A service that runs jobs, as its user steers it: real processes, a real folder, and every command against it."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.client import Server
from pilotage.client.server import path_of
from pilotage.service.announcement import find_service
from tests.acceptance.test_book_commands import Desk
from tests.kit.real_runs import end_service

WAIT_SECONDS = 60.0
INTERVAL_SECONDS = 60.0  # whoever waits for an agent that has nothing to say is found out
WORK = """#!/bin/sh
# work NAME: `bad` fails while there is no file `mended`, `slow` waits for the file `gate`; both are looked for in the folder.
echo "begin $1"
case $1 in
    bad) if [ ! -e "$PILOTAGE_FOLDER/mended" ]; then echo "I am broken" >&2; exit 3; fi ;;
    slow) while [ ! -e "$PILOTAGE_FOLDER/gate" ]; do sleep 0.05; done ;;
esac
echo "made by $1" > "$1.dat"
"""
DOCUMENT = """pilotage: 1
job: three
stages:
  - each: {name: [good, bad, slow]}
    run: ./work {name}
    outputs: ["{name}.dat"]
    retry: {attempts_max: 1}
  - run: ./join {inputs}
    inputs: ["*.dat"]
    outputs: [all.txt]
"""


class Bench(Desk):
    """A folder with a document, and a service that runs jobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name, text in (("work", WORK), ("join", '#!/bin/sh\ncat "$@" > all.txt\n')):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "pilotage.yaml").write_text(DOCUMENT)
        (folder / "pilotage.toml").write_text(f"[engine]\ninterval_seconds = {INTERVAL_SECONDS}\n")

    def server(self) -> Server:
        told = self.service()
        token = Path(str(told["token_file"])).read_text().strip()
        return Server(str(told["url"]), token=lambda: token)

    def until(self, job: str, is_so: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """Wait until the states of the packages are as they should be: looked at again whenever something happened."""
        until = time.monotonic() + WAIT_SECONDS
        with self.server() as server:
            after = 0
            while True:
                packages = server.get(path_of("jobs", job, "packages"))["packages"]
                states = {each["id"]: each["state"] for each in packages}
                if is_so(states):
                    return states
                assert time.monotonic() < until, (states, self.run("status", job).stdout)
                after = server.get(path_of("jobs", job, "events"), {"after": after, "wait_seconds": 5})["after"]

    def end(self) -> None:
        """End the agents, which can say so while the service is there; then the service, and agents it started since."""
        self._end_agents()
        state = self.folder / ".pilotage"
        if find_service(state) is not None:
            end_service(state)
        self._end_agents()

    def _end_agents(self) -> None:
        for file in (self.folder / ".pilotage" / "pilots").glob("*.json"):
            try:
                pid = json.loads(file.read_text())["pid"]
                descriptor = os.pidfd_open(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it is gone already
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            assert select.select([descriptor], [], [], WAIT_SECONDS)[0], f"agent {pid} goes on"
            os.close(descriptor)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "desk")
    bench.said("serve", "--port", "0", "--slots", "3", "--background")
    try:
        yield bench
    finally:
        bench.end()


def told(bench: Bench, *words: str) -> Any:
    return json.loads(bench.said(*words, "--json"))


def test_a_job_is_submitted_explained_mended_and_taken_over(bench: Bench) -> None:
    job = bench.said("submit").strip()
    states = bench.until(
        job, lambda at: at["1.2.1"] == "ABORTED" and at["1.1.1"] == "DONE" and at["1.3.1"] == "RUNNING"
    )
    assert states["2.1.1"] == "ABORTED"

    card = bench.said("status", f"{job}/1.2.1")
    for part in (
        "application-error",
        "exit status 3",
        "| I am broken",
        f"pilotage logs {job}/1.2.1",
        "not be retried",
    ):
        assert part in card, card
    grouped = bench.said("status", job)
    assert "1 package: application-error" in grouped
    assert "1 package: upstream" in grouped
    assert "1.2.1" in bench.said("explain", f"{job}/2.1.1")
    assert told(bench, "explain", f"{job}/1.3.1")["standing"] == "live"
    assert bench.said("logs", f"{job}/1.2.1", "--stderr") == "I am broken\n"

    (bench.folder / "mended").touch()
    assert bench.said("retry", "--failed", job) == f"restarted {job}\n"
    bench.until(job, lambda at: at["1.2.1"] == "DONE" and at["2.1.1"] == "WAITING")
    (bench.folder / "gate").touch()
    bench.until(job, lambda at: set(at.values()) == {"DONE"})
    output = told(bench, "outputs", f"{job}/2.1.1")
    assert (output["exit_code"], [each["name"] for each in output["outputs"]]) == ("SUCCESS", ["all.txt"])
    assert bench.said("outputs", job, "--to", "mine").startswith(f"{job}: 4 files verified of 4")
    made = (bench.folder / "mine" / "all.txt").read_text().splitlines()
    assert sorted(made) == ["made by bad", "made by good", "made by slow"]
    assert told(bench, "status", job)["job"]["state"] == "CLEARED"


def test_what_runs_is_held_killed_and_dropped(bench: Bench) -> None:
    (bench.folder / "mended").touch()
    job = bench.said("submit").strip()
    bench.until(job, lambda at: at["1.3.1"] == "RUNNING" and at["1.1.1"] == at["1.2.1"] == "DONE")
    assert bench.said("hold", f"{job}/2.1.1", "--message", "wait") == f"held {job}/2.1.1\n"
    assert bench.said("kill", job, "--where", "state=RUNNING") == "killed 1 package of 1 found\n"
    bench.until(job, lambda at: at["1.3.1"] == "CANCELLED")
    assert "is over" in bench.run("reschedule", f"{job}/1.3.1").stderr
    assert bench.said("drop", job, "1.3") == f"dropped {job}/1.3\n"
    assert "held" in bench.said("explain", f"{job}/2.1.1")
    assert bench.said("release", f"{job}/2.1.1") == f"released {job}/2.1.1\n"
    bench.until(job, lambda at: at["2.1.1"] == "DONE")
    assert sorted((bench.folder / "all.txt").read_text().splitlines()) == ["made by bad", "made by good"]


def test_a_line_is_dropped_with_its_files_and_makes_them_anew_when_it_is_taken_back_in(bench: Bench) -> None:
    (bench.folder / "mended").touch()
    made = bench.folder / "good.dat"
    job = bench.said("submit").strip()
    bench.until(job, lambda at: at["1.3.1"] == "RUNNING" and at["1.1.1"] == at["1.2.1"] == "DONE")
    stays = f"1 file that it made stays; remove with: pilotage drop --remove-files {job} 1.1"
    assert bench.said("drop", job, "1.1") == f"dropped {job}/1.1\n{stays}\n"
    assert made.exists()
    assert "use --yes" in bench.run("drop", "--remove-files", job, "1.1").stderr
    assert made.exists()
    gone = "removed 1 file, 13 B: good.dat"
    assert bench.said("drop", "--remove-files", "--yes", job, "1.1") == f"dropped {job}/1.1\n{gone}\n"
    assert not made.exists()
    (bench.folder / "bad.dat").write_text("mine now\n")
    [dropped] = told(bench, "drop", "--remove-files", "--yes", job, "1.2")["done"]
    assert [(each["name"], each["reason"]) for each in dropped["files"]["kept_files"]] == [("bad.dat", "changed")]
    assert (bench.folder / "bad.dat").read_text() == "mine now\n"
    removed = [each for each in told(bench, "events", f"{job}/1.1.1")["events"] if each["type"] == "FilesRemoved"]
    assert [each["data"]["removed"] for each in removed] == [["good.dat"]]
    assert bench.said("restore", job, "1.1") == f"restored {job}/1.1\n"
    bench.until(job, lambda at: at["1.1.1"] == "DONE")
    assert made.read_text() == "made by good\n"
    (bench.folder / "gate").touch()
    bench.until(job, lambda at: at["2.1.1"] == "DONE")
    assert sorted((bench.folder / "all.txt").read_text().splitlines()) == ["made by good", "made by slow"]
    assert "3 files verified of 3" in bench.said("outputs", job)


def test_a_service_that_stops_and_starts_again_goes_on_with_what_runs(bench: Bench) -> None:
    (bench.folder / "mended").touch()
    job = bench.said("submit").strip()
    bench.until(job, lambda at: at["1.3.1"] == "RUNNING")
    begun = time.monotonic()
    bench.said("serve", "--stop")
    assert time.monotonic() - begun < INTERVAL_SECONDS / 2  # nobody who waits for work holds it up
    bench.said("serve", "--port", "0", "--slots", "3", "--background")
    (bench.folder / "gate").touch()
    bench.until(job, lambda at: set(at.values()) == {"DONE"})
    assert told(bench, "status", f"{job}/1.3.1")["package"]["attempts"] == 1


def test_the_doctor_finds_a_running_service_well(bench: Bench) -> None:
    found = {each["hop"]: each["verdict"] for each in told(bench, "doctor")["findings"]}
    assert {found[hop] for hop in ("service", "socket", "token", "state folder")} == {"ok"}


def test_of_a_killed_job_one_package_comes_back_with_what_it_needs_and_nothing_else(bench: Bench) -> None:
    (bench.folder / "mended").touch()
    job = bench.said("submit").strip()
    bench.until(job, lambda at: at["1.3.1"] == "RUNNING" and at["1.1.1"] == at["1.2.1"] == "DONE")
    assert bench.said("kill", job) == f"killed {job}\n"
    bench.until(job, lambda at: at["1.3.1"] == at["2.1.1"] == "CANCELLED")
    (bench.folder / "gate").touch()
    assert bench.said("restart", f"{job}/1.3.1") == f"restarted {job}/1.3.1\n"
    bench.until(job, lambda at: at["1.3.1"] == "DONE")
    assert told(bench, "status", f"{job}/2.1.1")["package"]["state"] == "CANCELLED"
    assert not (bench.folder / "all.txt").exists()
    assert bench.said("restart", f"{job}/2.1.1") == f"restarted {job}/2.1.1\n"
    bench.until(job, lambda at: set(at.values()) == {"DONE"})
    assert (bench.folder / "all.txt").exists()
