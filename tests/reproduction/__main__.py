"""`python -m tests.reproduction`: probes, then real pilots, on a real Slurm cluster under a made-up load."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pilotage.client import Server
from pilotage.service.announcement import find_service
from tests.engines.capsule import CannotIsolate
from tests.engines.errors import EngineError
from tests.kit.real_runs import Place, place_in, wait_until
from tests.reproduction.comparison import compare, lines
from tests.reproduction.grid import Grid

QUEUES = 12
PILOTS_EACH = 2
WARM_SECONDS = 60.0
PROBES, PROBE_SECONDS = 120, 0.75
WATCH_SECONDS = 120.0
SERVE = """\
from pathlib import Path

from pilotage.app.service.serve import serve_jobs
from pilotage.app.state_folder import settings_here
from pilotage.language.parsing.sites import read_sites

found, report = read_sites(Path("sites.yaml").read_bytes(), file="sites.yaml")
assert found is not None, report
serve_jobs(settings_here(), started=lambda _: None, slots=0, entries=found.sites)
"""
SITE = """\
  - {{name: {queue}, kind: slurm, queue: {queue}, folder: {folder}, python: {python}, slots: 1, pilots_max: {pilots}}}
"""
DOCUMENT = """\
pilotage: 1
job: pilots
stages:
  - each: {{number: 1..{packages}}}
    run: sleep 600
"""


def main() -> int:
    """Run everything, and print how far the pilots were from the model; 0 where enough of it was inside three sigma."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    seed = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="pilotage-reproduce-") as name:
        folder = Path(name)
        try:
            grid = Grid(QUEUES, seed=seed)
        except (CannotIsolate, EngineError) as error:
            _say(f"no cluster could be started here: {error}")
            return 3
        with grid:
            _say(f"{QUEUES} queues of Slurm under load; {WARM_SECONDS:.0f} s until it is even")
            grid.wait(WARM_SECONDS)
            _say(f"{PROBES} probes")
            probes = grid.probe(folder, count=PROBES, every_seconds=PROBE_SECONDS)
            _say(f"{QUEUES * PILOTS_EACH} pilots; watched for {WATCH_SECONDS:.0f} s")
            starts = _pilots(grid, folder)
    # Beyond the largest latency of a probe the model has no variance left.
    found = compare(probes, starts, until_seconds=min(WATCH_SECONDS, max(probes)))
    sys.stdout.writelines(f"{line}\n" for line in lines(found))
    return 0 if found.holds else 1


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _pilots(grid: Grid, folder: Path) -> list[float]:
    """Have pilotage submit its pilots at all queues, and tell how long after the first request each started."""
    work = folder / "work"
    work.mkdir()
    with place_in(work) as place:
        place.document(DOCUMENT.format(packages=4 * QUEUES * PILOTS_EACH))
        sites = (
            SITE.format(queue=queue, folder=folder / "sites" / queue, python=sys.executable, pilots=PILOTS_EACH)
            for queue in grid.queues
        )
        (work / "sites.yaml").write_text("".join(["pilotage: 1\nsites:\n", *sites]))
        with _served(place, grid.cluster.environment()) as server:
            place.run("submit")
            asked_at = time.monotonic()
            grid.wait(WATCH_SECONDS + 5.0)
            rows = server.get("/v1/pilots", {"limit": 1000})["pilots"]
            _say(f"watched for {time.monotonic() - asked_at:.0f} s")
    return _latencies(rows)


def _latencies(rows: list[dict[str, object]]) -> list[float]:
    """Seconds from the first request to the start of each pilot; infinite where it has not started."""
    asked = {str(row["pilot"]): float(str(row["requested_at"])) for row in rows if row.get("requested_at") is not None}
    started: dict[str, float] = {}
    for row in rows:
        if row.get("started_at") is not None:
            request = str(row.get("request") or row["pilot"])
            started[request] = min(float(str(row["started_at"])), started.get(request, float("inf")))
    first = min(asked.values())
    return [started.get(request, float("inf")) - first for request in asked]


@contextmanager
def _served(place: Place, environment: Mapping[str, str]) -> Iterator[Server]:
    """A service that knows the sites of `sites.yaml`, while the block runs."""
    with (place.folder / "service.out").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            cwd=place.folder,
            env={**place.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(lambda: find_service(place.state) is not None or process.poll() is not None, "the service answers")
        if process.poll() is not None:
            raise EngineError((place.folder / "service.out").read_text())
        announced = find_service(place.state)
        assert announced is not None
        token_file = Path(announced.token_file)
        yield Server(announced.url, token=lambda: token_file.read_text().strip(), ca_file=announced.ca_file)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
