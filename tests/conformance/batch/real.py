"""The real systems."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from pilotage.agent.batch import Answer, Call, Dialect
from tests.conformance.batch.system import System, run_here, wait_until
from tests.engines import gridengine, slurm
from tests.engines.errors import EngineError
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
        _OVERRUN.pop(self.cluster, None)  # a controller that was killed may know another end of what had just ended

    def overrun(self) -> tuple[str, str]:
        # Slurm counts in minutes; an administrator may say when. It looks twice a minute: this is done early, once.
        if self.cluster not in _OVERRUN:
            key, native_id = _OVERRUN[self.cluster] = super().overrun()
            self.wait(key, "running")
            faults: list[EngineError] = []
            wait_until(lambda: self._ended_early(native_id, faults), lambda: str(faults[-1]))
        return _OVERRUN[self.cluster]

    def _ended_early(self, native_id: str, faults: list[EngineError]) -> bool:
        """Slurm sets the start of a job again when its node is set up: before that no time is after its start."""
        try:
            self.cluster.command("scontrol", "update", f"JobId={native_id}", "EndTime=now")
        except EngineError as fault:
            if "Invalid time" not in str(fault):
                raise
            faults.append(fault)
            return False
        return True


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
