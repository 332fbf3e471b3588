"""What the engine costs: a big job on many pilots in virtual time, beside a bare heap; memory, registration, and a start.

Every figure is CPU time, memory, or a ratio of two measurements of one run. `--full` takes a million packages.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from bench.book import WallClock
from bench.figures import Figures, child
from bench.work import SITES, Work, batches
from bench.yard import JOB, Folded, Log, Yard
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.engine.engine import Engine
from pilotage.engine.restore import JobSnapshot, Snapshot, restore
from pilotage.engine.state.jobs import PackageStatus
from pilotage.model.jobs.plan import Template
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.journal.writer import BatchCommitter
from pilotage.service.messages import Submit
from pilotage.service.server import settle_down
from pilotage.simulator.world.jobs import Definitions, big_job, registration

PILOTS = 10_000
SITES_COUNT = 100


def bare_heap(moments: int) -> float:
    """The floor: seconds of CPU to take a moment off a heap and put one on, so many times, with as many pending as pilots."""
    chance = random.Random(1)
    heap = [(chance.random(), number, None) for number in range(PILOTS)]
    heapq.heapify(heap)
    started = time.process_time()
    for number in range(moments):
        now, _, _ = heapq.heappop(heap)
        heapq.heappush(heap, (now + 60.0, PILOTS + number, None))
    return time.process_time() - started


def _simulated(packages: int, journal: Log) -> dict[str, float]:
    gc.collect()
    before = resident_bytes()
    yard = Yard(packages=packages, pilots=PILOTS, sites=SITES_COUNT, journal=journal)
    settle_down()
    started = time.process_time()
    moments = yard.run()
    seconds = time.process_time() - started
    floor = bare_heap(moments)
    return {
        "events": journal.count,
        "moments": moments,
        "microseconds": seconds / journal.count * 1e6,
        "floor_microseconds": floor / journal.count * 1e6,
        "bytes": (peak_bytes() - before) / packages,
    }


def simulated(packages: int) -> dict[str, float]:
    """Engine, core and simulator; the events are written down and not folded."""
    return _simulated(packages, Log())


def folded(packages: int) -> dict[str, float]:
    """The same with the folds of the book, in memory."""
    return _simulated(packages, Folded())


def registered(packages: int) -> dict[str, float]:
    """How fast a job becomes known, and what it then takes: its plan, and the engine's own arrays."""
    template = Template(activity="work")
    warm = big_job("warm", packages=1000, stages=4, template=template)
    sketch = big_job(JOB, packages=packages, stages=4, template=template)
    core = Core(Engine(sites=[Site(name="site")], settings=EngineSettings()))
    definitions = Definitions([warm, sketch], seed=1)
    core.step([Submit(token=1, job="warm", registered=registration(warm), plan=definitions.plan("warm", ()))], 0.0)
    gc.collect()
    before = resident_bytes()
    started = time.process_time()
    plan = definitions.plan(JOB, ())
    core.step([Submit(token=2, job=JOB, registered=registration(sketch), plan=plan)], 1.0)
    seconds = time.process_time() - started
    gc.collect()
    after = resident_bytes()
    if core.engine.state.jobs.by_id[JOB].count != packages:
        raise SystemExit("the job was not registered whole")
    return {"rate": packages / seconds, "bytes": (after - before) / packages}


def start(packages: int) -> dict[str, float]:
    """How long an engine takes to start from the book of a job that is half done."""
    with tempfile.TemporaryDirectory() as name:
        journal = SqliteJournal(Path(name))
        keeper = BatchCommitter(journal, clock=WallClock())
        work = Work(started_at=time.time() - 3600, in_flight=64)
        half = packages // 2
        lives = (chain((work.created(JOB, number),), work.finished(JOB, number)) for number in range(1, half + 1))
        running = (work.created(JOB, number) for number in range(half + 1, half + 1001))
        for body in batches(chain(work.registered(JOB, packages), chain.from_iterable(lives), running)):
            keeper.take_batch(body)
        settle_down()
        started = time.process_time()
        row = journal.job(JOB)
        assert row is not None
        sketch = big_job(JOB, packages=packages, stages=1, template=Template(activity="reconstruction"))
        plan = Definitions([sketch], seed=1).plan(JOB, ())
        job = JobSnapshot(row=row, plan=plan, finals=journal.finals(row), unfinished=journal.unfinished(row))
        snapshot = Snapshot(jobs=[job], pilots=journal.pilots(after="", limit=10**6), position=journal.position())
        engine = restore(
            snapshot, sites=[Site(name=each) for each in SITES], settings=EngineSettings(), now=time.time()
        )
        seconds = time.process_time() - started
        counts = engine.state.jobs.by_id[JOB].counts
        journal.close()
    if counts[PackageStatus.DONE] != half or counts[PackageStatus.LIVE] != 1000:
        raise SystemExit(f"not what was in the book: {counts}")
    return {"seconds": seconds}


def resident_bytes() -> int:
    """What this process has in memory."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most it ever had."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not tell {name}")


ONE: dict[str, Callable[[int], dict[str, float]]] = {
    "simulated": simulated,
    "folded": folded,
    "registered": registered,
    "start": start,
}


def main() -> None:
    """Print every figure with its bound; exit code 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--one", choices=ONE)
    parser.add_argument("--count", type=int, default=0)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(ONE[options.one](options.count)))
        return
    packages = 10**6 if options.full else 10**5
    figures = Figures()
    for name, said in (("simulated", "events written down"), ("folded", "events folded into the book, in memory")):
        found = child("bench.engine", name, packages)
        print(
            f"{packages:,} packages on {PILOTS:,} pilots at {SITES_COUNT} sites, {said}: {int(found['events']):,} events, "
            f"{int(found['moments']):,} moments; a bare heap takes {found['floor_microseconds']:.2f} µs for each event's"
        )
        figures.show(f"CPU of an event, {name}", found["microseconds"], "µs", bound=40)
        figures.show(f"memory in all, {name}", found["bytes"], "bytes a package", bound=1500)
    found = child("bench.engine", "registered", packages)
    figures.show("memory of plan and engine", found["bytes"], "bytes a package", bound=250)
    figures.show("registering", found["rate"] / 1000, "thousand a second", at_least=100)
    figures.show("start from a half-done job", child("bench.engine", "start", packages)["seconds"], "s CPU", bound=20)
    figures.done()


if __name__ == "__main__":
    main()
