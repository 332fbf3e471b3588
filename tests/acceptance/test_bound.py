"""One batch job for each package, on a real Slurm: how they end, and what a service that was killed finds again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import WAITING, ClusterRun, cluster_run, lines, site_agent
from tests.kit.real_runs import processes_with, wait_until

PACKAGES = 20
ALL_SORTS = f"""\
pilotage: 1
job: sorts
stages:
  - name: many
    each: {{{{number: {list(range(1, PACKAGES + 1))}}}}}
    outputs: ["out-{{{{number}}}}.txt"]
    shell: echo "$SLURM_JOB_NAME" > out-{{{{number}}}}.txt
  - {{{{name: fails, shell: exit 3, retry: {{{{attempts_max: 1}}}}}}}}
  - {{{{name: long, shell: exec sleep 1000, wall_time: 2, retry: {{{{attempts_max: 1}}}}}}}}
  - name: large
    memory: 64 MB
    retry: {{{{attempts_max: 1}}}}
    run: ["{sys.executable}", "-c", "kept = bytearray(200_000_000); import time; time.sleep(1000)"]
  - {{{{name: endless, shell: "echo begun > {{begun}}; exec sleep 1000"}}}}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    """Two nodes that know their names, in a cluster that soon forgets what has ended."""
    try:
        found = SlurmCluster("b", nodes=2, cpus=8, hostnames=True, node_seconds=5, remembered_seconds=2)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with found:
        yield found


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ClusterRun]:
    with cluster_run(tmp_path, cluster) as found:
        yield found


def ends(run: ClusterRun) -> dict[str, dict[str, Any]]:
    """What was told of the last attempt of each package."""
    return {each["package"]: each["data"] for each in run.events("AttemptFinished")}


def test_every_package_has_a_batch_job_of_its_own_and_each_way_to_end_its_reason(
    run: ClusterRun, tmp_path: Path
) -> None:
    place, begun = run.place, tmp_path / "begun"
    place.document(ALL_SORTS.format(begun=begun))
    job = str(place.told("submit")["job"])
    wait_until(lambda: len(ends(run)) == PACKAGES + 3, "all but one have ended")
    wait_until(begun.exists, "the endless one runs")
    assert processes_with("PILOTAGE_PACKAGE=5.1.1", f"PILOTAGE_JOB={job}\0")
    place.run("kill", f"{job}/5.1.1")
    place.run("attach", job, code=1)
    wait_until(lambda: not processes_with("PILOTAGE_PACKAGE=5.1.1", f"PILOTAGE_JOB={job}\0"), "it is ended")
    wait_until(lambda: not run.queued(), "no batch job is left")

    names = [(place.folder / f"out-{number}.txt").read_text().strip() for number in range(1, PACKAGES + 1)]
    assert len({*names}) == PACKAGES
    told = ends(run)
    assert {told[f"1.{line}.1"]["exit_code"] for line in range(1, PACKAGES + 1)} == {"SUCCESS"}
    reasons = {package: told[package].get("reason") for package in ("2.1.1", "3.1.1", "4.1.1")}
    assert reasons == {"2.1.1": "application-error", "3.1.1": "wall-time", "4.1.1": "out-of-memory"}
    assert told["2.1.1"]["exit_status"] == 3
    counts = Counter(each["package"] for each in run.events("CommitGranted"))
    assert counts == dict.fromkeys((f"1.{line}.1" for line in range(1, PACKAGES + 1)), 1)
    assert place.told("status", f"{job}/5.1.1")["package"]["state"] == "CANCELLED"
    # In the queue of the batch system each had a number there, and a lease when its agent came.
    natives = [each["data"]["native_id"] for each in run.events("AttemptQueued")]
    assert len({*natives}) == PACKAGES + 4
    assert len(run.events("AttemptStarted")) == PACKAGES + 4


def test_what_is_killed_in_the_queue_is_taken_out_of_it(run: ClusterRun, tmp_path: Path) -> None:
    run.cluster.drain()
    try:
        run.place.document(WAITING.format(folder=tmp_path))
        job = str(run.place.told("submit")["job"])
        wait_until(lambda: len(run.events("AttemptQueued")) == 4, "all of them wait in the queue")
        assert len(run.queued()) == 4
        run.place.run("kill", f"{job}/1.2.1")
        wait_until(lambda: len(run.queued()) == 3, "its batch job is gone")
        run.place.run("kill", job)
        wait_until(lambda: not run.queued(), "all are gone")
    finally:
        run.cluster.resume()
    assert run.place.told("status", job)["job"]["state"] == "CANCELLED"
    assert run.events("AttemptStarted") == []


@pytest.mark.slow
def test_a_limit_that_only_the_batch_system_knows_is_the_reason_and_not_taken_for_preemption(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    with cluster_run(tmp_path, cluster, {"wall_time_seconds": None, "directives": "['--time=1']"}) as run:
        run.place.document("pilotage: 1\njob: long\nstages: [{shell: exec sleep 1000, retry: {attempts_max: 1}}]\n")
        run.place.run("run", code=1)
        (ended,) = run.events("AttemptFinished")
        assert ended["data"]["reason"] == "wall-time"


@pytest.mark.slow
def test_an_agent_that_was_changed_while_its_batch_job_waited_is_not_started_and_put_there_again(
    run: ClusterRun, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    run.cluster.drain()
    try:
        run.place.document(WAITING.format(folder=tmp_path).replace("[1, 2, 3, 4]", "[1]"))
        job = str(run.place.told("submit")["job"])
        wait_until(lambda: run.events("AttemptQueued"), "it waits in the queue")
        (agent,) = (tmp_path / "shared").glob("*/agent-*.pyz")
        agent.write_bytes(f"import pathlib; pathlib.Path({str(tmp_path / 'forged')!r}).touch()\n".encode())
    finally:
        run.cluster.resume()
    run.place.run("attach", job)
    assert lines(tmp_path / "begun") == ["1"]
    assert not (tmp_path / "forged").exists()
    told = [each["data"]["message"] for each in run.events("AttemptLost")]
    assert any(f"{agent} has changed since it was installed, and is not started" in each for each in told), told


@pytest.mark.slow
def test_what_ran_on_a_lost_node_is_run_again(run: ClusterRun, tmp_path: Path) -> None:
    run.place.document(WAITING.format(folder=tmp_path))
    job = str(run.place.told("submit")["job"])
    wait_until(lambda: len(lines(tmp_path / "begun")) == 4, "all of them run")
    lost = run.running()[0]
    hit = {each["package"] for each in run.events("AttemptStarted") if each["data"]["node"] == lost}
    assert hit
    run.cluster.lose_node(lost)
    wait_until(lambda: {each["package"] for each in run.events("AttemptLost")} == hit, "what ran there is given up")
    (tmp_path / "go").touch()
    run.cluster.start_node(lost)
    run.place.run("attach", job)
    assert Counter(each["package"] for each in run.events("CommitGranted")) == {f"1.{n}.1": 1 for n in range(1, 5)}
    assert {each["package"] for each in run.events("AttemptCreated") if each["attempt"] == 2} == hit


def test_a_service_that_is_killed_finds_its_batch_jobs_again_and_does_nothing_twice(
    run: ClusterRun, tmp_path: Path
) -> None:
    before = run.jobs_ever()
    everything = [*range(1, 13)]
    run.place.document(WAITING.format(folder=tmp_path).replace("[1, 2, 3, 4]", str(everything)))
    job = str(run.place.told("submit")["job"])
    wait_until(lambda: run.events("AttemptQueued"), "the first is in the queue")
    run.kill_service()  # among its submissions: of one of them it may not know whether it was taken
    run.serve()
    wait_until(lambda: len(lines(tmp_path / "begun")) == len(everything), "all of them run")
    assert len({*run.jobs_ever()} - {*before}) == len(run.queued()) == len(everything)
    run.kill_service()
    (tmp_path / "go").touch()  # they end while nobody listens
    run.serve()
    run.place.run("attach", job)
    assert sorted(map(int, lines(tmp_path / "begun"))) == everything
    assert len(run.events("AttemptCreated")) == len(run.events("AttemptStarted")) == len(everything)
    assert len(run.events("CommitGranted")) == len(everything)


@pytest.mark.slow
def test_a_batch_job_that_was_ended_and_forgotten_while_the_service_was_down_is_missed(
    run: ClusterRun, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    run.cluster.drain()
    try:
        run.place.document(WAITING.format(folder=tmp_path))
        job = str(run.place.told("submit")["job"])
        wait_until(lambda: len(run.events("AttemptQueued")) == 4, "all of them wait in the queue")
        run.kill_service()
        gone = run.queued()[0]
        run.cluster.command("scancel", f"--name={gone}")
        wait_until(lambda: gone not in run.jobs_ever(), "the cluster has forgotten it")
        run.serve()
        wait_until(lambda: run.events("AttemptLost"), "it is missed")
    finally:
        run.cluster.resume()
    run.place.run("attach", job)
    assert lines(tmp_path / "begun") == ["1", "2", "3", "4"]
    assert Counter(each["attempt"] for each in run.events("AttemptCreated")) == {1: 4, 2: 1}
    assert len(run.events("CommitGranted")) == 4


def test_the_agent_of_a_site_submits_a_batch_job_for_each_package(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with (
        cluster_run(tmp_path, cluster, {"started_by": "agent"}) as run,
        site_agent(run, tmp_path, "--listen=127.0.0.1:0"),
    ):
        run.place.document(WAITING.format(folder=tmp_path))
        run.place.run("run")
        assert lines(tmp_path / "begun") == ["1", "2", "3", "4"]
        assert len({each["data"]["native_id"] for each in run.events("AttemptQueued")}) == 4
        wait_until(lambda: not run.queued(), "no batch job is left")


NAMED = """\
pilotage: 1
job: named
stages:
  - each: {{number: [1, 2, 3, 4, 5, 6]}}
    node_restriction: ["{node}", elsewhere]
    outputs: ["on-{{number}}.txt"]
    shell: uname -n > on-{{number}}.txt
  - each: {{number: [1, 2]}}
    outputs: ["any-{{number}}.txt"]
    shell: uname -n > any-{{number}}.txt
"""


@pytest.mark.parametrize("mode", ["bound", "pilots"])
def test_packages_run_on_the_node_that_they_name(cluster: SlurmCluster, tmp_path: Path, mode: str) -> None:
    # Slurm fills the first node first: what names the last one gets there because it says so.
    node = cluster.nodes[-1]
    entry = {"mode": mode, "slots": 1, "node_names": f"['{node[:-1]}*']", "job_throttle": 4, "idle_seconds": 1}
    with cluster_run(tmp_path, cluster, entry) as run:
        run.place.document(NAMED.format(node=node))
        run.place.run("run")
        told = {(run.place.folder / f"on-{number}.txt").read_text().strip() for number in range(1, 7)}
        assert told == {node}
        wait_until(lambda: not run.queued(), "no batch job is left")
