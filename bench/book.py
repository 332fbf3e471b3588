"""How fast the book takes events in, beside bare SQLite; what a question costs while it does; what it keeps in memory.

Every figure is a ratio of two measurements of one run, or CPU time. `--full` stores ten million events first.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.book_chain import chain
from bench.figures import Figures, child
from bench.floor import bare
from bench.work import Work, batches
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.rows.ledger import Changes
from pilotage.model.jobs.layout import PackageId
from pilotage.service.journal.writer import BatchCommitter
from pilotage.service.server import settle_down

PACKAGES = 33_000
IN_FLIGHT = {"short": 64, "long": 5000}
REPEATS = 3


class WallClock:
    """The time of this machine."""

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()


class Noting:
    """A ledger's rows on their way, so that bare SQLite can insert the very same ones."""

    def __init__(self) -> None:
        """Nothing noted yet."""
        self._changes: list[Changes] = []

    def __call__(self, joined: Any, ledger: Any) -> None:
        """Note the events of a batch."""
        changes: Changes = joined.changes
        self._changes.append(
            Changes(received=changes.received, events=changes.events, plain_events=changes.plain_events)
        )

    def rows(self) -> list[list[tuple[Any, ...]]]:
        """The rows of each batch, in the order of the columns of `events`."""
        return [changes.all_events() for changes in self._changes]


def ingest(in_flight: int) -> dict[str, float]:
    """Ours: read, join, project, commit; then the floor with the same rows in the same process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bodies = list(batches(Work(started_at=time.time() - 3600, in_flight=in_flight).events("J1", PACKAGES)))
        journal, noting = SqliteJournal(folder / "book"), Noting()
        keeper = BatchCommitter(journal, clock=WallClock(), within=(noting,))
        settle_down()
        wall, cpu = time.perf_counter(), time.process_time()
        for body in bodies:
            receipt = keeper.take_batch(body)
            if receipt.refused:
                raise SystemExit(f"refused: {receipt.refused[0]}")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        rows = noting.rows()
        floor_wall, floor_cpu = bare(folder, rows)
        job = journal.job("J1")
        if job is None or job.state != "DONE" or job.done != PACKAGES:
            raise SystemExit(f"the job is not done: {job}")
        journal.close()
    events = sum(len(some) for some in rows)
    return {
        "events": events,
        "rate": events / wall,
        "microseconds": cpu / events * 1e6,
        "ratio": floor_wall / wall,
        "cpu_ratio": floor_cpu / cpu,
        "floor_rate": events / floor_wall,
    }


def growth(events: int) -> dict[str, float]:
    """The CPU cost of an event when the book holds 10³, 10⁴, … events, and of questions at the end, with ingest running."""
    decades = [10**power for power in range(3, len(str(events)))]
    with tempfile.TemporaryDirectory(dir=os.environ.get("PILOTAGE_BENCH_FOLDER")) as name:
        journal = SqliteJournal(Path(name))
        keeper = BatchCommitter(journal, clock=WallClock())
        settle_down()
        supply = _jobs_for_ever(packages=100_000)
        stored, cost = 0, {}
        for decade in decades:
            window = max(10_000, decade // 20)  # measured until this many more are stored
            while stored < decade:
                stored += keeper.take_batch(next(supply)).kept
            some = [next(supply) for _ in range(window // 1000)]
            started = time.process_time()
            taken = sum(keeper.take_batch(body).kept for body in some)
            cost[decade] = (time.process_time() - started) / taken * 1e6
            stored += taken
        answers = _questions(journal, keeper, supply)
        journal.close()
    mean = sum(cost.values()) / len(cost)
    spread = max(abs(each / mean - 1) for each in cost.values())
    return {"stored": stored, "spread": spread, **{f"at {decade}": cost[decade] for decade in decades}, **answers}


def _jobs_for_ever(*, packages: int) -> Iterator[bytes]:
    work = Work(started_at=time.time() - 3600, in_flight=IN_FLIGHT["long"])

    def events() -> Iterator[dict[str, Any]]:
        number = 0
        while True:
            number += 1
            yield from work.events(f"J{number}", packages)

    return batches(events())


def _questions(journal: SqliteJournal, keeper: BatchCommitter, supply: Iterator[bytes]) -> dict[str, float]:
    """The 99th percentile of the CPU milliseconds of a question, asked in one thread while another takes events in."""
    stop = threading.Event()
    bodies = [next(supply) for _ in range(200)]

    def take() -> None:
        for body in bodies:
            if stop.is_set():
                return
            keeper.take_batch(body)

    taking = threading.Thread(target=take)
    taking.start()
    costs: dict[str, list[float]] = {"state": [], "package": []}
    for turn in range(500):
        job = _timed(costs["state"], partial(journal.job, "J1"))
        if job is None:
            raise SystemExit("the job is unknown")
        place = PackageId(1, 1 + turn * 7919 % 10_000, 1)
        if _timed(costs["package"], partial(journal.package, job, place)) is None:
            raise SystemExit(f"package {place} is unknown")
    stop.set()
    taking.join()
    return {name: sorted(each)[int(len(each) * 0.99)] * 1000 for name, each in costs.items()}


def _timed(costs: list[float], ask: Callable[[], Any]) -> Any:
    started = time.thread_time()
    answer = ask()
    costs.append(time.thread_time() - started)
    return answer


def memory(packages: int) -> dict[str, float]:
    """Resident bytes for each live package, and for each finished one, beyond what a warm book needs anyway."""
    with tempfile.TemporaryDirectory() as name:
        journal = SqliteJournal(Path(name))
        keeper = BatchCommitter(journal, clock=WallClock())
        work = Work(started_at=time.time() - 3600, in_flight=20_000)
        for body in batches(work.events("warm", max(packages, 100_000))):
            keeper.take_batch(body)  # the caches of SQLite and of the keeper are full now
        warm = _resident_bytes()
        for body in batches(work.registered("live", packages)):
            keeper.take_batch(body)
        for body in batches(work.created("live", number) for number in range(1, packages + 1)):
            keeper.take_batch(body)
        live = _resident_bytes()
        ends = (event for number in range(1, packages + 1) for event in work.finished("live", number))
        for body in batches(ends):
            keeper.take_batch(body)
        finished = _resident_bytes()
        journal.close()
    return {"live_bytes": (live - warm) / packages, "finished_bytes": (finished - warm) / packages}


def _resident_bytes() -> int:
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise SystemExit("the kernel does not tell VmRSS")


ONE: dict[str, Callable[[int], dict[str, float]]] = {"ingest": ingest, "growth": growth, "memory": memory}


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
    figures = Figures()
    for name, in_flight in IN_FLIGHT.items():
        runs = sorted((child("bench.book", "ingest", in_flight) for _ in range(REPEATS)), key=lambda run: run["ratio"])
        middle = runs[REPEATS // 2]  # the one in the middle
        said = f"{middle['rate']:,.0f} events/s, {middle['microseconds']:.1f} µs CPU an event, floor {middle['floor_rate']:,.0f} rows/s"
        print(f"{int(middle['events']):,} events, {in_flight:,} packages in flight ({name}): {said}")
        figures.show(f"ingest / bare inserts, {name}", middle["ratio"], "of the rate", at_least=0.25)
    found = chain()
    print(f"producer, spool, HTTP, commit, ack: {found['rate']:,.0f} events/s, floor {found['floor_rate']:,.0f} rows/s")
    figures.show("whole chain / bare inserts", found["ratio"], "of the rate", at_least=0.10)
    grown = child("bench.book", "growth", 10**7 if options.full else 10**5)
    costs = ", ".join(f"{key.removeprefix('at ')}: {grown[key]:.1f}" for key in grown if key.startswith("at "))
    print(f"{int(grown['stored']):,} events stored; µs CPU an event by events stored: {costs}")
    figures.show("cost of an event, off its mean", grown["spread"] * 100, "%", bound=25)
    figures.show("state of a job, p99", grown["state"], "ms CPU", bound=2)
    figures.show("a package, p99", grown["package"], "ms CPU", bound=2)
    kept = child("bench.book", "memory", 10**6 if options.full else 10**5)
    figures.show("memory, live", kept["live_bytes"], "bytes a package", bound=150)
    figures.show("memory, finished", kept["finished_bytes"], "bytes a package", bound=25)  # the noise of 2.5 MB
    figures.done()


if __name__ == "__main__":
    main()
