"""Short packages share batch jobs on a real Slurm: fewer batch jobs than packages, and nothing is lost or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.capsule import CannotIsolate
from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import ClusterRun, cluster_run
from tests.kit.real_runs import wait_until

PACKAGES = 30
MOST = 6  # packages in a batch job
FREE = 8  # the first ones wait for nothing
SHORT = f"""\
pilotage: 1
job: short
stages:
  - each: {{{{number: {list(range(1, PACKAGES + 1))}}}}}
    outputs: ["out-{{{{number}}}}.txt"]
    shell: |
      echo {{{{number}}}} >> {{folder}}/begun
      while [ {{{{number}}}} -gt {FREE} ] && ! test -e {{folder}}/go; do sleep 0.05; done
      echo "$SLURM_JOB_NAME" > out-{{{{number}}}}.txt
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    try:
        found = SlurmCluster("g", nodes=1, cpus=4)
    except CannotIsolate as error:
        pytest.skip(f"privilege: {error}")
    with found:
        yield found


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster) -> Iterator[ClusterRun]:
    """One batch job at a time, for at most six packages."""
    settings = f"group_packages_max = {MOST}\n"
    with cluster_run(tmp_path, cluster, {"job_throttle": 0}, settings=settings) as found:
        yield found


def groups(run: ClusterRun) -> dict[str, list[str]]:
    """The packages of each batch job that several attempts share, in their order."""
    found: dict[str, list[str]] = {}
    for each in run.events("AttemptCreated"):
        if key := each["data"].get("group"):
            found.setdefault(key, []).append(each["package"])
    return found


def begun(folder: Path) -> Counter[int]:
    """How often each package began."""
    return Counter(map(int, (folder / "begun").read_text().split()))


def granted(run: ClusterRun) -> Counter[str]:
    """How many attempts of each package were granted."""
    return Counter(each["package"] for each in run.events("CommitGranted"))


def test_short_packages_share_batch_jobs_and_a_killed_one_loses_only_what_it_had_not_finished(
    run: ClusterRun, tmp_path: Path
) -> None:
    place = run.place
    place.document(SHORT.format(folder=tmp_path))
    job = str(place.told("submit")["job"])
    # A batch job stands in its middle: some of its packages are done, one runs, and the others wait for their turn.
    wait_until(lambda: begun(tmp_path)[FREE + 1] == 1 if (tmp_path / "begun").exists() else False, "one waits inside")
    stuck = f"1.{FREE + 1}.1"
    packages = next(found for found in groups(run).values() if stuck in found)
    wait_until(lambda: {*packages[: packages.index(stuck)]} <= granted(run).keys(), "those before it are granted")
    done = packages[: packages.index(stuck)]
    waiting = packages[packages.index(stuck) + 1 :]
    assert waiting
    told = place.told("explain", f"{job}/{waiting[-1]}")
    assert any(each["code"] == "shares-batch-job" for each in told["reasons"]), told

    (name,) = run.queued()
    assert {(place.folder / f"out-{each.split('.')[1]}.txt").read_text().strip() for each in done} == {name}
    run.cluster.command("scancel", f"--name={name}")
    wait_until(
        lambda: {each["package"] for each in run.events("AttemptLost")} >= {*waiting}, "the others are taken back"
    )
    (tmp_path / "go").touch()
    place.run("attach", job)
    wait_until(lambda: not run.queued(), "no batch job is left")

    assert granted(run) == {f"1.{line}.1": 1 for line in range(1, PACKAGES + 1)}
    lost = {each["package"]: each["data"]["reason"] for each in run.events("AttemptLost")}
    assert {lost[each] for each in waiting} == {"regrouped"}
    assert not {*done} & {*lost}
    # What ran when its batch job was killed ran again; nothing else ran twice.
    assert begun(tmp_path) == {number: 2 if number == FREE + 1 else 1 for number in range(1, PACKAGES + 1)}
    names = {(place.folder / f"out-{number}.txt").read_text().strip() for number in range(1, PACKAGES + 1)}
    assert len(names) < PACKAGES / 2, names
    assert max(len(each) for each in groups(run).values()) == MOST
