"""A service that was killed and comes back at another port, while its pilots are in jobs of a real Slurm."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.engines.slurm import SlurmCluster
from tests.kit.cluster_runs import WAITING, ClusterRun, cluster_run, lines, site_agent
from tests.kit.real_runs import wait_until

ENTRIES: dict[str, dict[str, Any]] = {
    "pilots": {"mode": "pilots", "pilots_max": 2},
    "bound": {"mode": "bound"},
    "pilots of a site agent": {"mode": "pilots", "pilots_max": 2, "started_by": "agent"},
}


@pytest.mark.parametrize("way", ENTRIES)
def test_pilots_find_the_service_at_its_new_port_and_nothing_is_done_twice(
    slurm_cluster: SlurmCluster, tmp_path: Path, way: str
) -> None:
    def beside(run: ClusterRun) -> AbstractContextManager[None]:
        return site_agent(run, tmp_path) if "agent" in way else nullcontext()

    with cluster_run(tmp_path, slurm_cluster, {**ENTRIES[way], "idle_seconds": 1}) as run:
        with beside(run):
            run.place.document(WAITING.format(folder=tmp_path))
            job = str(run.place.told("submit")["job"])
            wait_until(lambda: len(lines(tmp_path / "begun")) == 4, "all of them run")
            before = run.jobs_ever()
            run.kill_service()
        run.move_service()
        run.serve()
        with beside(run):  # its user tells it the new address
            (tmp_path / "go").touch()
            run.place.run("attach", job)
            wait_until(lambda: not run.queued(), "no pilot stays in its batch job")
        assert lines(tmp_path / "begun") == ["1", "2", "3", "4"]
        assert Counter(each["package"] for each in run.events("CommitGranted")) == {f"1.{n}.1": 1 for n in range(1, 5)}
        assert run.events("AttemptLost") == []
        assert run.jobs_ever() == before
