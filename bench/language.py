"""How fast a million packages are expanded, beside a bare loop; what is kept of them; how fast the commands start.

Each measurement runs in a process of its own, with the floor beside it in the same process; times are CPU seconds, and
what counts is the ratio of two of them from one run.
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

from bench.figures import Figures

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


LATE = """\
pilotage: 1
job: late
stages:
  - each: {{i: 1..{count}}}
    run: ./work out-{{i}}.dat
    outputs: ["out-{{i}}.dat"]
  - run: ./split
    outputs: ["piece-*"]
  - each: {{piece: piece-*}}
    run: ./use {{piece}}
    inputs: ["{{piece}}"]
    outputs: ["used-{{piece}}"]
"""

TEN_LINES = """\
pilotage: 1
job: sweep
stages:
  - each: {seed: 1..1000}
    run: ./simulate --seed {seed} --out sim-{seed}.dat
    outputs: [sim-{seed}.dat]
  - run: ./merge {inputs} --out result.dat
    inputs: [sim-*.dat]
    outputs: [result.dat]
"""


def bare_loop(count: int) -> float:
    """The floor: names and makers in a bare loop, in CPU seconds."""
    started = time.process_time()
    t: list[tuple[str, str, str]] = []
    makers: dict[str, int] = {}
    for i in range(count):
        t.append((f"p{i}", f"in-{i}.dat", f"out-{i}.dat"))
        makers[t[-1][2]] = i
    return time.process_time() - started


def expansion(count: int) -> dict[str, float]:
    """Ours: read the document, expand it, resolve its files, order the graph; then the floor in the same process."""
    from pilotage.language import MemoryFolder, RecordingLists, Report, expand, read_document

    data = DOCUMENT.format(count=count).encode()
    folder = MemoryFolder(f"in-{i}.dat" for i in range(1, count + 1))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _resident_bytes()
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
    peak = _peak_bytes() - before
    kept = _resident_bytes() - before
    return {
        "seconds": seconds,
        "floor_seconds": bare_loop(count),
        "packages": found.count,
        "edges": found.graph.edge_count,
        "kept_bytes": kept,
        "peak_bytes": peak,
    }


def late_growth(count: int) -> dict[str, float]:
    """A job with a late stage: what is kept of it, and what laying the stage out costs."""
    from pilotage.language import MemoryFolder, RecordingLists, Report, expand, grow, read_document

    document, report = read_document(LATE.format(count=count).encode(), file="late.yaml", folder=MemoryFolder())
    if document is None:
        raise SystemExit(str(report.errors))
    gc.collect()
    before = _resident_bytes()
    found = expand(document.definition, RecordingLists(MemoryFolder()), Report("late.yaml"))
    if found is None or len(found.late) != 1:
        raise SystemExit("the document has no late stage")
    kept = _resident_bytes() - before
    started = time.process_time()
    grown = grow(found, 3, {count: ["piece-1", "piece-2"]}, Report("late.yaml"))
    seconds = time.process_time() - started
    if grown is None or grown.count != found.count + 2:
        raise SystemExit("the stage did not grow")
    return {"seconds": seconds, "kept_bytes": kept, "packages": found.count}


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not tell {field}")


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


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
    """Print every figure with its bound; exit code 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=int, default=PACKAGES)
    parser.add_argument("--one", choices=("expansion", "late"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps((expansion if options.one == "expansion" else late_growth)(options.packages)))
        return
    runs = [_child("expansion", options.packages) for _ in range(REPEATS)]
    best = min(runs, key=lambda run: run["seconds"] / run["floor_seconds"])
    count = options.packages
    late = _child("late", count // 5)
    print(f"{int(best['packages']):,} packages, {int(best['edges']):,} edges; CPU seconds, best of {REPEATS} processes")
    print(f"  bare loop {best['floor_seconds']:.2f} s, expand and order {best['seconds']:.2f} s")
    figures = Figures()
    figures.show("expand and order / bare loop", best["seconds"] / best["floor_seconds"], "times", bound=3)
    figures.show("kept", best["kept_bytes"] / count, "bytes a package", bound=120)
    figures.show("peak", best["peak_bytes"] / count, "bytes a package", bound=500)
    figures.show("kept with a late stage", late["kept_bytes"] / late["packages"], "bytes a package", bound=120)
    figures.show("laying a late stage out", late["seconds"] * 1e6 / late["packages"], "µs a package", bound=20)
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "pilotage.yaml"
        document.write_text(TEN_LINES)
        figures.show("pilotage --help", _command_milliseconds("--help"), "ms CPU", bound=120)
        figures.show("pilotage check, ten lines", _command_milliseconds("check", str(document)), "ms CPU", bound=250)
    figures.done()


if __name__ == "__main__":
    main()
