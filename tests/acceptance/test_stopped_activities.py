"""An activity that cannot succeed, on one machine: it is stopped soon, the rest of the job goes on, and a person opens it again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotage
from pilotage.service.announcement import find_service
from tests.kit.real_runs import Place, place_in, wait_until

PACKAGES = 200
HEALTHY = 5
BOUND = 20
SLOTS = 2
BROKEN = "echo tried >> {tried}\necho 'fit: no such option --fats' >&2\nexit 2\n"
MENDED = "echo fitted\n"
DOCUMENT = """pilotage: 1
job: two
stages:
  - activity: fit
    each: {{n: {{range: "1..{packages}"}}}}
    run: sh {tool}
    stdout: fit-{{n}}.dat
  - activity: count
    each: {{n: {{range: "1..{healthy}"}}}}
    shell: sleep 0.3; echo {{n}} > {{n}}.txt
    outputs: ["{{n}}.txt"]
  - activity: use
    inputs: ["fit-*.dat"]
    shell: cat fit-*.dat > all.txt
    outputs: [all.txt]
"""


class Bench(Place):
    """A folder with a document whose first activity calls a program that is installed elsewhere, and fails."""

    def __init__(self, folder: Path) -> None:
        desk, self.tool, self.tries = folder / "desk", folder / "fit.sh", folder / "tried"
        desk.mkdir()
        super().__init__(desk)
        self.tool.write_text(BROKEN.format(tried=self.tries))
        self.document(DOCUMENT.format(packages=PACKAGES, healthy=HEALTHY, tool=self.tool))

    def executed(self) -> int:
        """How often the program ran."""
        return len(self.tries.read_text().splitlines()) if self.tries.exists() else 0

    def count(self, query: str) -> int:
        """How many packages a query finds."""
        return len(self.told("query", query, "--limit", "1000")["packages"])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    with place_in(bench.folder):
        yield bench
        bench.close()


def test_two_hundred_packages_with_a_bug_end_soon_and_are_run_again_when_it_is_mended(bench: Bench) -> None:
    done = bench.run("run", "--slots", str(SLOTS), code=1)
    assert bench.executed() <= BOUND + SLOTS
    assert f"stopped: {BOUND} attempts of " in done.stdout
    assert "of fit failed alike (application-error 2: 'sh' ended with exit code 2), and none succeeded" in done.stdout
    job = done.stdout.partition(":")[0]
    assert f"go on: mend the cause, then: pilotage retry {job} --activity fit; " in done.stdout
    assert bench.count(f"job={job} and activity=count and state=DONE") == HEALTHY
    assert (
        bench.count(f"job={job} and cause=activity-stopped") + bench.count(f"job={job} and cause=retries-exhausted")
        == 200
    )

    told = bench.told("status", job)
    [stopped] = told["job"]["stopped"]
    assert (stopped["activity"], stopped["failed_attempts"]) == ("fit", BOUND)
    assert told["progress"]["stopped"] == [stopped]
    shown = bench.run("status", job).stdout
    assert f"stopped: {stopped['message']}" in shown
    assert "it will not be retried: its activity was stopped" in shown
    assert "its activity fit was stopped" in bench.run("explain", f"{job}/1.200.1").stdout
    assert "the activity count of the job" in bench.run("retry", job, "--activity", "count", code=2).stderr
    assert "did you mean 'fit'" in bench.run("retry", job, "--activity", "fitt", code=2).stderr
    assert "--activity is empty" in bench.run("retry", job, "--activity", "", code=2).stderr
    assert "leave out --failed" in bench.run("retry", job, "--activity", "fit", "--failed", code=2).stderr
    assert "--activity fit" in bench.run("retry", f"{job}/1.200.1", code=2).stderr

    bench.tool.write_text(MENDED)
    bench.run("retry", job, "--activity", "fit", "--message", "mended")
    bench.run("attach", job)
    told = bench.told("status", job)
    assert (told["job"]["state"], told["job"]["failed"], told["job"]["stopped"]) == ("DONE", 0, [])
    assert bench.seen("all.txt").read_text() == "fitted\n" * PACKAGES


def test_a_service_that_is_killed_while_they_fail_counts_on(bench: Bench) -> None:
    run = bench.begin("run", "--slots", str(SLOTS))
    wait_until(lambda: bench.executed() >= BOUND // 2, "some attempts")
    if (service := find_service(bench.state)) is not None:
        os.kill(service.pid, signal.SIGKILL)
    done = bench.ended(run, code=1)
    assert "stopped: " in done.stdout
    assert bench.executed() < PACKAGES // 2
    job = done.stdout.partition(":")[0]
    [stopped] = bench.told("status", job)["job"]["stopped"]
    assert BOUND <= stopped["failed_attempts"] < PACKAGES // 2
    assert f"stopped: {stopped['message']}" in bench.run("healing", job).stdout

    bench.tool.write_text(MENDED)
    bench.run("serve", "--stop")
    bench.run("serve", "--slots", str(SLOTS), "--background")
    service = find_service(bench.state)
    assert service is not None
    client = pilotage.Client(service.url, token_file=service.token_file)
    client.restart(job, activity="fit")
    assert client.result(job).wait().ok
