"""What files cost: many small inputs, and one large file beside the tools that a person would use, in the same minute.

Of small inputs, CPU time of the service, the agent and all programs, above that of the same job without them. Of a large
file, the time by the clock of a whole fetch into a cache (looked up, brought, its checksum computed, on disk before it gets
its name) beside `cp` and then `sha256sum`, and beside `curl | sha256sum`. All read from memory, in turn; the middle one of
several.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figures
from bench.run import bench, timed
from pilotage.app.store_registry import StoreRegistry
from pilotage.model.exchange.operations import FetchFile
from pilotage.model.exchange.reports import FileArrived
from pilotage.service.transfers.transfers import FileReport, SiteCache, Transfers
from pilotage.service.works.capture import INPUTS_MAX

FILES, PACKAGES = 10_000, 100
EACH = FILES // PACKAGES
SMALL_BYTES = 100
LARGE_BYTES = 2**30
ROUNDS = 5


# --- small ones -------------------------------------------------------------------------------------------------------


def small_files(folder: Path) -> None:
    """Small files, all different: one for each input of each package."""
    folder.mkdir()
    for package in range(PACKAGES):
        for number in range(EACH):
            text = f"{package} {number} "
            (folder / f"f{package}-{number}").write_text(text.ljust(SMALL_BYTES, "."))


def document(name: str, inputs: list[object], *, first: int = 0, last: int = PACKAGES - 1) -> str:
    """A job of packages that run `/bin/true`, and have these inputs."""
    stage = {"each": {"n": f"{first}..{last}"}, "run": "/bin/true", "inputs": inputs}
    return json.dumps({"pilotage": 1, "job": name, "stages": [stage]})


def linked(figures: Figures) -> None:
    """Small files of a store: brought to the cache of this computer, and then linked from there."""
    with bench(slots=2) as ours:
        store = ours.folder / "store"
        small_files(store)
        floor = copied(store, ours.folder / "copy")
        inputs: list[object] = [{"name": f"in-{n}", "locator": f"file://{store}/f{{n}}-{n}"} for n in range(EACH)]
        bare = ours.run(document("bare", []), name="bare")[1]
        first = ours.run(document("brought", inputs), name="brought")[1]
        again = ours.run(document("linked", inputs), name="linked")[1]
        bare = (bare + ours.run(document("bare-again", []), name="bare-again")[1]) / 2
    print(
        f"{FILES:,} inputs of {SMALL_BYTES} bytes, {EACH} each of {PACKAGES} packages; without them these take {bare:.2f} s"
    )
    print(f"  `cp -r` of them takes {floor / FILES * 1e3:.3f} ms CPU each")
    figures.show("linked from the cache", (again - bare) / FILES * 1e3, "ms CPU each", bound=0.15)
    figures.show("brought to the cache first, and linked", (first - bare) / FILES * 1e3, "ms CPU each", bound=0.3)


def copied(source: Path, target: Path) -> float:
    """The CPU seconds of copying a folder."""
    before = os.times()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def sent(figures: Figures) -> None:
    """Small files beside documents: captured when these are submitted, and sent to the agent through the service."""
    packages = INPUTS_MAX // EACH
    with bench(slots=2) as ours:
        small_files(ours.folder / "in")
        inputs: list[object] = [f"in/f{{n}}-{n}" for n in range(EACH)]

        def jobs(name: str, inputs: list[object]) -> float:
            """The CPU seconds of all packages, in as many jobs as it takes for all inputs to be captured."""
            used = 0.0
            for first in range(0, PACKAGES, packages):
                text = document(f"{name}-{first}", inputs, first=first, last=first + packages - 1)
                used += ours.run(text, name=f"{name}-{first}")[1]
            return used

        bare = jobs("bare", [])
        used = jobs("sent", inputs)
        bare = (bare + jobs("bare-again", [])) / 2
    print(f"{FILES:,} captured inputs of {PACKAGES // packages} jobs; without them these take {bare:.2f} s")
    figures.show("sent through the service, and linked", (used - bare) / FILES * 1e3, "ms CPU each", bound=0.3)


# --- a large one ------------------------------------------------------------------------------------------------------


def fetch_seconds(locator: str, folder: Path) -> float:
    """How long it takes to bring a file to an empty cache, by the clock, from the order to the report."""
    reports: list[FileReport] = []
    reported = threading.Event()

    def report(told: FileReport) -> None:
        """Take the report."""
        reports.append(told)
        reported.set()

    transfers = Transfers(
        StoreRegistry(()),
        report=report,
        caches=lambda _: SiteCache(folder=str(folder / "cache")),
        outputs=lambda *_: (),
        spool=str(folder / "spool"),
    )
    started = time.perf_counter()
    transfers.want(FetchFile(site="here", key="large", locator=locator, name="la/large"))
    reported.wait()
    seconds = time.perf_counter() - started
    transfers.stop()
    if not isinstance(reports[0], FileArrived):
        raise SystemExit(f"it did not come: {reports[0]}")
    shutil.rmtree(folder / "cache")
    return seconds


def large(figures: Figures) -> None:
    """One large file of a folder, and of a web server."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
        folder = Path(name)
        (folder / "store").mkdir()
        source = folder / "store" / "large"
        subprocess.run(["head", "-c", str(LARGE_BYTES), "/dev/urandom"], check=True, stdout=source.open("wb"))
        command = [sys.executable, "-m", "bench.file_server", str(source.parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/large"
            tools = {
                f"file://{source}": f"cp {source} {folder}/copy && sha256sum {folder}/copy && rm {folder}/copy",
                url: f"curl --silent --fail {url} | sha256sum",
            }
            ratios = {locator: compared(locator, words, folder) for locator, words in tools.items()}
            server.terminate()
    print(f"one file of {LARGE_BYTES / 2**30:.0f} GiB, in memory; the middle one of {ROUNDS} ratios of speeds")
    figures.show("from a folder / cp, then sha256sum", ratios[f"file://{source}"], "", at_least=0.8)
    figures.show("from a web server / curl | sha256sum", ratios[url], "", at_least=0.8)


def compared(locator: str, words: str, folder: Path) -> float:
    """How many times as fast a fetch is as a command."""
    found = []
    for _ in range(ROUNDS):
        peer = timed(["bash", "-o", "pipefail", "-c", words])
        ours = fetch_seconds(locator, folder)
        found.append(peer / ours)
        print(f"    {locator.partition(':')[0]}: {peer:.2f} s, {ours:.2f} s")
    return statistics.median(found)


def main() -> None:
    """Print every figure with its bound; exit code 1 if one was missed."""
    figures_of: dict[str, Callable[[Figures], None]] = {"linked": linked, "sent": sent, "large": large}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=tuple(figures_of))
    options = parser.parse_args()
    figures = Figures()
    for name, measure in figures_of.items():
        if options.only in (None, name):
            measure(figures)
    figures.done()


if __name__ == "__main__":
    main()
