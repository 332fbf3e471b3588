"""The real systems."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from pilotage.agent.batch import Answer, Call, Dialect
from tests.conformance.batch.system import System, run_here
from tests.engines import gridengine, slurm
from tests.engines.gridengine import GridEngine
from tests.engines.slurm import SlurmCluster


class RealSlurm(System):
    """A Slurm cluster."""

    wall_seconds = 60
    too_many = slurm.ARRAY_MAX + 1

    def __init__(self, cluster: SlurmCluster, dialect: Dialect, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = cluster
        self.dialect = dialect

    def run(self, call: Call) -> Answer:
        return run_here(call, within=self.cluster.within, environment=self.cluster.environment())

    def down(self) -> None:
        self.cluster.kill_controller()

    def up(self) -> None:
        self.cluster.restart_controller()

    def overrun(self) -> tuple[str, str]:
        # Slurm counts in minutes; an administrator may say when. It looks twice a minute: this is done early, once.
        if self.cluster not in _OVERRUN:
            key, native_id = _OVERRUN[self.cluster] = super().overrun()
            self.wait(key, "running")
            self.cluster.command("scontrol", "update", f"JobId={native_id}", "EndTime=now")
        return _OVERRUN[self.cluster]


_OVERRUN: WeakKeyDictionary[SlurmCluster, tuple[str, str]] = WeakKeyDictionary()


class RealGridEngine(System):
    """A cell of Grid Engine."""

    wall_seconds = 2
    too_many = gridengine.ARRAY_MAX + 1
    tells_cancelled = False

    def __init__(self, cell: GridEngine, dialect: Dialect, folder: Path) -> None:
        super().__init__(folder)
        self.cell = cell
        self.dialect = dialect

    def run(self, call: Call) -> Answer:
        return run_here(call, within=self.cell.within, environment=self.cell.environment())

    def down(self) -> None:
        self.cell.kill_master()

    def up(self) -> None:
        self.cell.restart_master()
