"""What records of jobs cost, from finished jobs to a durable commit, and how small they are beside their dumps.

A service makes records from its live book a few seconds after the end of jobs; those of sealed jobs are read from their files.
Every job has its own definition and results, shares its program with a hundred others, and has random run times, digests and
sizes, which nothing can compress. `--count` jobs have dumps of 2 to 100 kB each; `--full` makes a hundred thousand.
"""

from __future__ import annotations

import argparse
import gzip
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from bench import record_index
from bench.book import WallClock
from bench.figures import Figures
from bench.work import Work, batches
from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.adapters.records.folder import FolderRecords
from pilotage.model.settings.settings import ProvenanceSettings
from pilotage.service.journal.recording import RecordKeeping
from pilotage.service.journal.writer import BatchCommitter

COUNT, SEALED = 4000, 1000
FULL = 100_000
AT_ONCE = 100
"""Jobs that end, and may be sealed, before their records are committed together."""
SAMPLED = 3
"""Jobs of those whose dumps are compressed one by one, for comparison."""
SMALLEST, LARGEST = 2_000, 100_000
_PACKAGE_BYTES = 1_150  # of the three events of a package, in a dump


class Varied(Work):
    """Jobs of one user after the other, with what no two of them have in common."""

    def __init__(self, seed: int) -> None:
        """Draw everything from a seed."""
        super().__init__(started_at=1_700_000_000.0, in_flight=4)
        self._chance = random.Random(seed)

    def event(self, source: str, kind: str, data: dict[str, Any], **subject: Any) -> dict[str, Any]:
        """One event, some time after the last."""
        self._now += self._chance.expovariate(2.0)
        if kind == "AttemptFinished":
            data["cpu_seconds"] = round(self._chance.uniform(1.0, 4000.0), 3)
            data["peak_memory_bytes"] = self._chance.randrange(10**8, 10**9)
            for phase in data["phases"]:
                phase["seconds"] = round(self._chance.uniform(0.001, 900.0), 6)
            for made in data["manifest"]:
                made["size_bytes"] = self._chance.randrange(10**7)
                made["sha256"] = self._chance.randbytes(32).hex()
        return super().event(source, kind, data, **subject)

    def packages(self) -> int:
        """How many packages a job has: sizes of dumps are spread evenly on a logarithmic scale."""
        size: float = SMALLEST * (LARGEST / SMALLEST) ** self._chance.random()
        return max(1, int((size - 1_200) / _PACKAGE_BYTES + 0.5))

    def definition(self, job: str) -> bytes:
        """A document, with parameters of its own."""
        parameters = {f"p{n}": round(self._chance.gauss(0.0, 1.0), 6) for n in range(8)}
        return msgspec.json.encode(
            {"job": job, "stages": [{"run": "./simulate --config c.toml"}], "parameters": parameters}
        )

    def program(self) -> bytes:
        """A program that a hundred jobs share."""
        return self._chance.randbytes(20_000)


def make_jobs(book: SqliteJournal, count: int, *, sealed: bool) -> Iterator[str]:
    """Register and finish jobs, and perhaps seal them."""
    work, keeper = Varied(11), BatchCommitter(book, clock=WallClock())
    program = ""
    for number in range(count):
        job = f"job-{number:07}"
        if number % 100 == 0:
            program = book.put_content(work.program())
        events = list(work.events(job, work.packages()))
        events[0]["data"] |= {"definition": book.put_content(work.definition(job)), "lists": {"file-1": program}}
        for body in batches(iter(events)):
            if keeper.take_batch(body).refused:
                raise SystemExit("an event was refused")
        if sealed:
            book.seal(job)
        yield job


def measure(count: int, folder: Path, *, sealed: bool) -> dict[str, float]:
    """Make jobs, then their records as a service does; sizes in bytes, times in CPU seconds."""
    book = SqliteJournal(folder / "book", durable=False)  # records are
    keeping = RecordKeeping(
        book,
        settings=ProvenanceSettings(),
        open_store=lambda *, writes: FolderRecords(folder / "records", writes=writes),
        clock=WallClock(),
    )
    dumps = zipped = cpu = wall = 0.0
    jobs = make_jobs(book, count, sealed=sealed)
    done = 0
    while some := list(islice(jobs, AT_ONCE)):
        begun, used = time.perf_counter(), time.process_time()
        again = keeping.record_all(some)
        wall, cpu = wall + time.perf_counter() - begun, cpu + time.process_time() - used
        if again or not all(map(keeping.store().revisions, some)):
            raise SystemExit("a record could not be made")
        for job in some[:SAMPLED]:
            text = b"".join(book.dump(job))
            dumps, zipped = dumps + len(text), zipped + len(gzip.compress(text))
        done += len(some)
    dumped = sum(len(b"".join(book.dump(f"job-{n:07}"))) for n in range(0, count, max(1, count // 500)))
    average = dumped / len(range(0, count, max(1, count // 500)))
    stored = sum(each.stat().st_size for each in (folder / "records").rglob("*") if each.is_file())
    keeping.close()
    book.close()
    return {
        "records": done,
        "per_core_second": done / cpu,
        "per_second": done / wall,
        "dump_bytes": average,
        "times_smaller": average * done / stored,
        "gzip_times_smaller": dumps / zipped,
    }


def main() -> None:
    """Measure, and print figures beside their bounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--sealed", type=int, default=SEALED, help="further jobs, which are sealed")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--indexed", type=int, default=record_index.COUNT, help="records of the index that is searched")
    given = parser.parse_args()
    figures = Figures()
    with tempfile.TemporaryDirectory() as name:
        found = measure(FULL if given.full else given.count, Path(name), sealed=False)
    with tempfile.TemporaryDirectory() as name:
        of_sealed = measure(given.sealed, Path(name), sealed=True)
    print(f"records of {found['records']:,.0f} jobs, dumps of {found['dump_bytes']:,.0f} bytes on average")
    figures.show("records committed", found["per_core_second"], "a CPU second", at_least=500)
    figures.show("the same of sealed jobs", of_sealed["per_core_second"], "a CPU second", at_least=500)
    figures.show("smaller than their dumps", found["times_smaller"], "times", at_least=10)
    figures.show("as gzip makes each dump", found["gzip_times_smaller"], "times", at_least=1)
    with tempfile.TemporaryDirectory() as name:
        searched = record_index.measure(Path(name) / "index.sqlite", given.indexed)
    print(
        f"finding records in an index of {given.indexed:,}, up to {record_index.FOUND} at once, beside the bare SQL statement"
    )
    for query, (milliseconds, floor, records) in searched.items():
        figures.show(f"{query}: {records}", milliseconds, f"ms CPU ({floor:.1f})", bound=20)
    figures.done()


if __name__ == "__main__":
    main()
