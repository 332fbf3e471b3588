"""A small grid: nodes of one Slurm cluster as queues of their own, each under a load of its own."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

from tests.engines.errors import EngineError
from tests.engines.slurm import SlurmCluster

CPUS = 8
JOB_CPUS = 2
JOB_SECONDS = 20.0  # on average
JOBS = range(6, 15)  # of others at a queue, of which four run
_OTHERS = "others"
_LOOK_SECONDS = 0.5


class Grid:
    """A cluster whose node number K is the partition gridK, with jobs of others coming and going at each."""

    def __init__(self, queues: int, *, seed: int) -> None:
        """Start the cluster; `load` begins with the others' jobs."""
        self.cluster = SlurmCluster("grid", nodes=queues, cpus=CPUS)
        self.queues = [f"grid{number}" for number in range(1, queues + 1)]
        self._chance = random.Random(seed)
        self._wanted = {queue: self._chance.choice(JOBS) for queue in self.queues}
        self._over = threading.Event()
        self._loader = threading.Thread(target=self._load)
        self.failure: EngineError | None = None
        try:
            for queue, node in zip(self.queues, self.cluster.nodes, strict=True):
                self.cluster.command("scontrol", "create", f"PartitionName={queue}", f"Nodes={node}", "State=UP")
        except BaseException:
            self.cluster.close()
            raise

    def __enter__(self) -> Grid:
        self._loader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._loader.ident is not None:
            self._loader.join()
        self.cluster.close()

    def submit(self, queue: str, *, cpus: int, command: str, name: str) -> None:
        """Submit a job of one command."""
        words = (f"--partition={queue}", f"--cpus-per-task={cpus}", f"--job-name={name}", "--output=/dev/null")
        self.cluster.command("sbatch", *words, f"--wrap={command}")

    def wait(self, seconds: float) -> None:
        """Let the load go on for some time; raises what it failed with."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0 and not self._over.wait(min(left, 1.0)):
            pass
        if self.failure is not None:
            raise self.failure

    def probe(self, folder: Path, *, count: int, every_seconds: float) -> list[float]:
        """Submit probes one by one, to each queue in turn; their latencies once all have started."""
        asked = []
        for number in range(count):
            asked.append(time.time())
            queue = self.queues[number % len(self.queues)]
            self.submit(queue, cpus=1, command=f"date +%s.%N > {folder}/probe-{number}", name="probe")
            self.wait(max(0.0, asked[0] + (number + 1) * every_seconds - time.time()))
        files = [folder / f"probe-{number}" for number in range(count)]
        while not all(file.exists() and file.read_text().strip() for file in files):
            self.wait(0.5)
        return [float(file.read_text()) - at for file, at in zip(files, asked, strict=True)]

    def _load(self) -> None:
        """Keep as many jobs of others at each queue as belong there: the load is the same all the time."""
        try:
            while not self._over.wait(_LOOK_SECONDS):
                present = Counter(
                    self.cluster.command("squeue", "--noheader", f"--name={_OTHERS}", "--format=%P").split()
                )
                for queue, wanted in self._wanted.items():
                    for _ in range(wanted - present[queue]):
                        seconds = self._chance.expovariate(1.0 / JOB_SECONDS)
                        self.submit(queue, cpus=JOB_CPUS, command=f"sleep {seconds:.2f}", name=_OTHERS)
        except EngineError as error:  # told to whoever waits
            self.failure = error
            self._over.set()
