"""A job that ran on this computer is run again from its record by a real batch system."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_batch_sites import SITES, queued, served
from tests.engines.slurm import SlurmCluster
from tests.kit.real_runs import Place, place_in, wait_until

DOCUMENT = """\
pilotage: 1
job: sums
stages:
  - name: sum
    each: {n: [10, 20]}
    run: [./sum.sh, "{n}"]
    outputs: ["sum-{n}.txt", "where-{n}.txt"]
"""
SUM = '#!/bin/sh\nseq $1 | paste -sd+ > sum-$1.txt\necho "$PILOTAGE_SITE" > where-$1.txt\n'


@pytest.fixture
def recorded(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[tuple[Place, str]]:
    """A folder whose job ran on this computer, and knows a cluster since; and the job."""
    (tmp_path / "work").mkdir()
    with place_in(tmp_path / "work") as place:
        (place.folder / "sum.sh").write_text(SUM)
        (place.folder / "sum.sh").chmod(0o755)
        place.document(DOCUMENT)
        job = str(place.told("run")["job"])
        place.run("provenance", "keep", job)
        place.run("serve", "--stop")
        entry = SITES.format(folder=tmp_path / "shared", python=sys.executable, mode="pilots", address='""')
        (place.folder / "sites.yaml").write_text(entry)
        place.environment |= slurm_cluster.environment()
        yield place, job


def test_a_local_job_is_run_again_by_slurm_and_what_differs_is_told_before_and_after(
    recorded: tuple[Place, str], slurm_cluster: SlurmCluster
) -> None:
    place, job = recorded
    first = place.told("provenance", "rerun", job, "--site", "lyon", "--in", "again", code=1)
    assert {each["name"]: each["verdict"] for each in first["outputs"]} == {
        "sum-10.txt": "identical",
        "sum-20.txt": "identical",
        "where-10.txt": "different",
        "where-20.txt": "different",
    }
    assert (place.folder / "again" / "where-20.txt").read_text() == "lyon\n"
    assert {"what": "site", "before": "local", "after": "lyon"} in first["environment"]
    assert first["expected"] == {"sites": ["lyon"], "nodes": 0, "software": [], "environment": []}
    with served(place, {}):
        second = place.run("provenance", "rerun", job, "--site", "lyon", "--in", "second", code=1).stdout
        assert "  no node of lyon is known yet\n" in second
        third = place.run("provenance", "rerun", job, "--site", "lyon", "--in", "third", code=1).stdout
        wait_until(lambda: not queued(slurm_cluster), "pilots without work end")
    before, told, after = third.partition("environment is not the same\n")
    assert told
    assert "  what is known of lyon is not as recorded\n" in before
    assert "    site: local → lyon\n" in before
    assert "  site: local → lyon\n" in after
