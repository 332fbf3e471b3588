"""The systems as fixtures: each test of the suite runs on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.agent.batch import dialects
from tests.conformance.batch.played import PlayedSystem
from tests.conformance.batch.real import RealGridEngine, RealSlurm
from tests.conformance.batch.system import System

PREFIX = "pilotage-t1"


@pytest.fixture(params=["real-slurm", "real-gridengine", "pbs", "lsf", "htcondor", "dirac"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    """Each system, with an empty folder."""
    name = request.param.removeprefix("real-")
    dialect = dialects()[name](PREFIX)
    folder = tmp_path / "folder"
    if name == "slurm":
        slurm = RealSlurm(request.getfixturevalue("slurm_cluster"), dialect, folder)
        slurm.overrun()
        yield slurm
    elif name == "gridengine":
        yield RealGridEngine(request.getfixturevalue("grid_engine"), dialect, folder)
    else:
        played = PlayedSystem(dialect, folder)
        yield played
        played.close()
