"""A batch system that holds its jobs to the memory they asked for, and packages that have batch jobs of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.slurm import SlurmCluster, can_limit_memory
from tests.kit.cluster_runs import ClusterRun, cluster_run

LIMIT_BYTES = 64 * 2**20
# It takes so much on top of what Python itself takes, all at once, and says how much it then had.
TAKE = "import resource; kept = b'x' * (int({mebibytes}) << 20); print(resource.getrusage(0).ru_maxrss >> 10)"
DOCUMENT = """\
pilotage: 1
job: taking
stages:
  - memory: 64 MiB
    stdout: taken.txt
    outputs: [taken.txt]
    run: ["{python}", "-c", "{take}"]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if not can_limit_memory():
        pytest.skip("privilege: no control groups for memory here")
    try:
        found = SlurmCluster("g", nodes=1, cpus=4, hostnames=True, memory_limits=True)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with found:
        yield found


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ClusterRun]:
    with cluster_run(tmp_path, cluster) as found:
        yield found


def take(run: ClusterRun, mebibytes: int) -> int:
    """Run a package that takes memory; how many MiB it had."""
    run.place.document(DOCUMENT.format(python=sys.executable, take=TAKE.format(mebibytes=mebibytes)))
    run.place.run("run")
    return int((run.place.folder / "taken.txt").read_text())


def test_a_package_can_take_all_the_memory_that_it_asked_for(run: ClusterRun) -> None:
    taken = take(run, 54)
    assert 56 <= taken <= 64  # nearly everything: what the agent takes is beside it
    (created,) = run.events("AttemptCreated")
    assert created["attempt"] == 1


def test_a_package_that_takes_more_is_ended_by_its_agent_or_the_kernel_and_given_twice_as_much(run: ClusterRun) -> None:
    assert 112 <= take(run, 115) <= 128  # more than its batch job had the first time, with what the agent left of it
    first, second = run.events("AttemptFinished")
    assert (first["data"]["reason"], second["data"]["exit_code"]) == ("out-of-memory", "SUCCESS")
    assert [each["data"].get("memory_bytes") for each in run.events("AttemptCreated")] == [None, 2 * LIMIT_BYTES]
