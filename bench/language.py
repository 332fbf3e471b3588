"""How fast a million packages are expanded, beside a bare loop; what is kept of them; how fast the commands start.

Each measurement runs in a process of its own, so that one does not warm or burden the other; times are CPU seconds,
and what counts is the ratio of two of them from one run.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACKAGES = 10**6
REPEATS = 3

DOCUMENT = """\
pilotage: 1
job: million
stages:
  - each: {{i: 1..{count}}}
    run: ./work in-{{i}}.dat out-{{i}}.dat
    inputs: ["in-{{i}}.dat"]
    outputs: ["out-{{i}}.dat"]
  - each: {{part: {{files: out-*.dat, group: 1000}}}}
    run: ./merge {{inputs}}
    inputs: ["{{part}}"]
    outputs: ["merged-{{tag}}.dat"]
"""


def bare_loop(count: int) -> dict[str, float]:
    """The floor: names and makers in a bare loop."""
    started = time.process_time()
    t: list[tuple[str, str, str]] = []
    makers: dict[str, int] = {}
    for i in range(count):
        t.append((f"p{i}", f"in-{i}.dat", f"out-{i}.dat"))
        makers[t[-1][2]] = i
    return {"seconds": time.process_time() - started, "packages": len(makers)}


def expansion(count: int) -> dict[str, float]:
    """Ours: read the document, expand it, resolve its files, order the graph."""
    from pilotage.language import MemoryFolder, RecordingLists, Report, expand, read_document

    data = DOCUMENT.format(count=count).encode()
    folder = MemoryFolder(f"in-{i}.dat" for i in range(1, count + 1))
    gc.collect()
    before, rss_before = _resident_bytes(), _peak_bytes()
    started = time.process_time()
    document, report = read_document(data, file="million.yaml", folder=folder)
    if document is None:
        raise SystemExit(str(report.errors))
    found = expand(document.definition, RecordingLists(folder), Report("million.yaml"), mark=document.mark)
    if found is None:
        raise SystemExit("the document was refused")
    order = found.graph.order()
    seconds = time.process_time() - started
    if order is None or len(order) != found.count:
        raise SystemExit("the graph was not ordered")
    peak = _peak_bytes() - max(before, rss_before)
    gc.collect()
    kept = _resident_bytes() - before
    return {
        "seconds": seconds,
        "packages": found.count,
        "edges": found.graph.edge_count,
        "kept_bytes": kept,
        "peak_bytes": peak,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _child(name: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.language", "--one", name, "--packages", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _command_milliseconds(*arguments: str) -> float:
    """The least CPU time of a command over several runs, in milliseconds, with its modules compiled as installed ones are."""
    program = Path(sys.executable).with_name("pilotage")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = float("inf")
    for _ in range(2 * REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best * 1000


def main() -> None:
    """Print every figure with its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=int, default=PACKAGES)
    parser.add_argument("--one", choices=("bare", "expansion"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps((bare_loop if options.one == "bare" else expansion)(options.packages)))
        return
    floors, ours = [], []
    for _ in range(REPEATS):
        floors.append(_child("bare", options.packages))
        ours.append(_child("expansion", options.packages))
    floor, own = min(f["seconds"] for f in floors), min(o["seconds"] for o in ours)
    count, last = options.packages, ours[-1]
    print(f"{int(last['packages']):,} packages, {int(last['edges']):,} edges; CPU seconds, best of {REPEATS}")
    print(f"  bare loop          {floor:8.2f} s")
    print(f"  expand and order   {own:8.2f} s   ratio {own / floor:.2f}   (at most 3)")
    print(f"  kept               {last['kept_bytes'] / count:8.0f} bytes a package   (at most 120)")
    print(f"  peak               {last['peak_bytes'] / count:8.0f} bytes a package   (at most 500)")
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "pilotage.yaml"
        document.write_text(DOCUMENT.format(count=1000))
        for i in range(1, 1001):
            (Path(folder) / f"in-{i}.dat").touch()
        print(f"  pilotage --help    {_command_milliseconds('--help'):8.0f} ms CPU   (under 120)")
        print(f"  pilotage check     {_command_milliseconds('check', str(document)):8.0f} ms CPU   (under 250)")


if __name__ == "__main__":
    main()
