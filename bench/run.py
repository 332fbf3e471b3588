"""What running costs: real processes through the service and its agent, each figure beside a floor of the same minute.

The floor is a C loop of `posix_spawn` and `wait`, two in flight, and `xargs` or `make` where the work is theirs. Ratios
and CPU time only. A service is started in a folder of its own, and is warm when the clock starts; how long a cold start
takes is told by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Figures
from pilotage.app.jobs.watch import is_over
from pilotage.client.finding import address_in
from pilotage.client.jobs import Jobs

HERE = Path(__file__).parent
PROGRAM = (sys.executable, "-m", "pilotage")
LAYERS, WIDTH = 20, 100
LOOK_SECONDS = 0.25
_TICK = os.sysconf("SC_CLK_TCK")


# --- floors -----------------------------------------------------------------------------------------------------------


def compiled(name: str, folder: Path) -> Path:
    """A program in C of this folder, compiled."""
    made = folder / name
    subprocess.run(["gcc", "-O2", "-o", str(made), str(HERE / f"{name}.c")], check=True)
    return made


def floor_program(folder: Path) -> Path:
    """The C loop."""
    return compiled("floor", folder)


def timed(command: list[str], *, cwd: Path | None = None) -> float:
    """How long a command takes."""
    started = time.perf_counter()
    subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


# --- ours -------------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """What a process and those it waited for have used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK


def resident_bytes(pid: int) -> int:
    """What a process has in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not tell the memory of {pid}")


def descendants(pid: int) -> list[int]:
    """Every process below one."""
    found, looked = [], [pid]
    while looked:
        children = Path(f"/proc/{looked.pop()}/task")
        try:
            below = [int(word) for each in children.iterdir() for word in (each / "children").read_text().split()]
        except OSError:
            continue
        found += below
        looked += below
    return found


class Bench:
    """A folder with a service of its own."""

    def __init__(self, folder: Path, *, slots: int) -> None:
        """Start the service; it is warm when a first job has run."""
        self.folder = folder
        self.environment = {**os.environ, "PILOTAGE_JOURNAL_URL": "sqlite:.pilotage"}
        self.say("serve", "--background", "--port", "0", "--slots", str(slots))
        told = json.loads((folder / ".pilotage" / "service.json").read_text())
        self.service = int(told["pid"])

    def say(self, *words: str) -> str:
        """Have a command done; what it prints."""
        done = subprocess.run(
            [*PROGRAM, *words], cwd=self.folder, env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    def processes(self) -> list[int]:
        """The service, and the pilots with their supervisors."""
        pilots = [
            int(json.loads(file.read_text())["pid"]) for file in (self.folder / ".pilotage" / "pilots").glob("*.json")
        ]
        return [self.service, *pilots, *(below for pilot in pilots for below in descendants(pilot))]

    def used(self) -> float:
        """The CPU time of everything so far."""
        return sum(map(cpu_seconds, self.processes()))

    def run(self, document: str, *, name: str) -> tuple[float, float]:
        """Submit a document and wait for its end: seconds by the clock from its registration to its last event, and of CPU."""
        (self.folder / f"{name}.yaml").write_text(document)
        before = self.used()
        job = json.loads(self.say("submit", f"{name}.yaml", "--json"))["job"]
        self.await_end(job)
        used = self.used() - before
        told = json.loads(self.say("status", job, "--json"))["job"]
        if told["counts"]["done"] != told["packages"]:
            raise SystemExit(f"not everything was done: {told}")
        return float(told["finished_at"]) - float(told["submitted_at"]), used

    def await_end(self, job: str) -> None:
        """Ask how far a job is, as somebody does who watches it; from here, since a new process takes its share too."""
        address = address_in(self.folder / ".pilotage")
        if address is None:
            raise SystemExit("the service is gone")
        with address.server() as server:
            while not is_over(Jobs(server).progress(job)):
                time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """End the service and its agents."""
        subprocess.run([*PROGRAM, "serve", "--stop"], cwd=self.folder, env=self.environment, check=True)


@contextmanager
def bench(*, slots: int) -> Iterator[Bench]:
    """A service in a new folder, warm."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
        made = Bench(Path(name), slots=slots)
        try:
            made.run(trues(20), name="warm")
            yield made
        finally:
            made.stop()


def trues(count: int) -> str:
    """A document of so many /bin/true."""
    return f"pilotage: 1\njob: trues{count}\nstages:\n  - each: {{n: 1..{count}}}\n    run: /bin/true\n"


def layers(mix: Path) -> str:
    """Twenty layers of a hundred, each of which reads two files of the layer before and writes one: one process each."""
    parts = ["pilotage: 1", "job: layers", "stages:"]
    parts += [
        "  - name: layer0",
        f"    each: {{n: 0..{WIDTH - 1}}}",
        f"    run: [{mix}, seed.txt, seed.txt, 'f0-{{n}}']",
        "    inputs: [seed.txt]",
        "    outputs: ['f0-{n}']",
    ]
    for layer in range(1, LAYERS):
        parts += [
            f"  - name: layer{layer}",
            "    each: {csv: pairs.csv}",
            f"    run: [{mix}, 'f{layer - 1}-{{left}}', 'f{layer - 1}-{{right}}', 'f{layer}-{{left}}']",
            f"    inputs: ['f{layer - 1}-{{left}}', 'f{layer - 1}-{{right}}']",
            f"    outputs: ['f{layer}-{{left}}']",
        ]
    return "\n".join(parts) + "\n"


def makefile(folder: Path, mix: Path) -> None:
    """The same for make."""
    lines = [f"all: {' '.join(f'f{LAYERS - 1}-{n}' for n in range(WIDTH))}"]
    lines += [f"f0-{n}: seed.txt\n\t{mix} seed.txt seed.txt $@" for n in range(WIDTH)]
    for layer in range(1, LAYERS):
        for n in range(WIDTH):
            left, right = f"f{layer - 1}-{n}", f"f{layer - 1}-{(n + 1) % WIDTH}"
            lines.append(f"f{layer}-{n}: {left} {right}\n\t{mix} {left} {right} $@")
    (folder / "Makefile").write_text("\n".join(lines) + "\n")


def in_order(folder: Path, mix: Path) -> None:
    """The same for the loop of the floor, one command a line."""
    lines = [f"{mix} seed.txt seed.txt f0-{n}" for n in range(WIDTH)]
    for layer in range(1, LAYERS):
        before = f"f{layer - 1}-"
        lines += [f"{mix} {before}{n} {before}{(n + 1) % WIDTH} f{layer}-{n}" for n in range(WIDTH)]
    (folder / "layers.txt").write_text("\n".join(lines) + "\n")


# --- figures ----------------------------------------------------------------------------------------------------------


def short_ones(figures: Figures, *, count: int) -> None:
    """A: /bin/true, two at a time, every event durable."""
    with bench(slots=2) as ours, tempfile.TemporaryDirectory() as name:
        floor = timed([str(floor_program(Path(name))), str(count), "2", "/bin/true"])
        seconds, used = ours.run(trues(count), name="short")
        after = timed([str(floor_program(Path(name))), str(count), "2", "/bin/true"])
    floor = (floor + after) / 2
    print(f"A: {count:,} times /bin/true on 2 slots; the floor takes {floor / count * 1e3:.2f} ms each")
    figures.show("short packages / floor", floor / seconds, "", at_least=0.45)
    figures.show("CPU of one in all", used / count * 1e3, "ms", bound=1.0)


def sleepers(figures: Figures, *, count: int) -> None:
    """B: sleep 0.1, sixteen at a time, beside xargs."""
    with bench(slots=16) as ours:
        words = f"seq {count} | xargs -P16 -n1 sh -c 'exec sleep 0.1'"
        peer = timed(["bash", "-c", words])
        document = f"pilotage: 1\njob: sleepers\nstages:\n  - each: {{n: 1..{count}}}\n    run: [sleep, '0.1']\n"
        seconds, _ = ours.run(document, name="sleepers")
    ideal = count * 0.1 / 16
    print(f"B: {count:,} times sleep 0.1 on 16 slots; xargs is {ideal / peer:.3f} of the ideal")
    figures.show("efficiency", ideal / seconds, "", at_least=ideal / peer - 0.01)


def files(figures: Figures) -> None:
    """C: twenty layers of a hundred with files, beside the floor of as many /bin/true, that of the same programs, and make."""
    count = LAYERS * WIDTH
    with bench(slots=2) as ours, tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as bare:
        folder = Path(name)
        program = floor_program(folder)
        floor = timed([str(program), str(count), "2", "/bin/true"])
        for place in (folder, Path(bare), ours.folder):
            (place / "seed.txt").write_text(
                "a seed of some length, so that there is something to copy, sixty-four bytes\n"
            )
        rows = "".join(f"{n},{(n + 1) % WIDTH}\n" for n in range(WIDTH))
        (ours.folder / "pairs.csv").write_text("left,right\n" + rows)
        mix = compiled("mix", folder)
        makefile(folder, mix)
        in_order(Path(bare), mix)
        same = timed([str(program), "layers.txt", "2"], cwd=Path(bare))
        peer = timed(["make", "-j2", "-s"], cwd=folder) if shutil.which("make") else float("nan")
        seconds, used = ours.run(layers(mix), name="layers")
        floor = (floor + timed([str(program), str(count), "2", "/bin/true"])) / 2
    print(f"C: {LAYERS} layers of {WIDTH} with files; make -j2 is {floor / peer:.2f} of the floor")
    print(
        f"  in the loop of the floor the same programs take {same / floor:.2f} of it, so this is {same / seconds:.2f} of that"
    )
    figures.show("layers with files / floor", floor / seconds, "", at_least=0.35)
    figures.show("CPU of one in all", used / count * 1e3, "ms", bound=1.4)


def many(figures: Figures, *, count: int) -> None:
    """D: submitted and held, none run."""
    with bench(slots=1) as ours:
        document = trues(count).replace("stages:", "hold: true\nstages:")
        (ours.folder / "many.yaml").write_text(document)
        before, used = resident_bytes(ours.service), cpu_seconds(ours.service)
        ours.say("submit", "many.yaml", "--json")
        used = cpu_seconds(ours.service) - used
        after = resident_bytes(ours.service)
    print(f"D: {count:,} submitted, none run")
    figures.show("submitted, by CPU of the service", count / used / 1e3, "thousand a second", at_least=60)
    figures.show("memory in the service", (after - before) / count, "bytes a package", bound=500)


def idle(figures: Figures) -> None:
    """Nothing to do: what service and agent take together."""
    with bench(slots=2) as ours:
        before, started = ours.used(), time.monotonic()
        time.sleep(20)
        used = (ours.used() - before) / (time.monotonic() - started)
        memory = sum(resident_bytes(pid) for pid in set(ours.processes()))
    print("idle: a service and its agent")
    figures.show("of a core", used * 100, "%", bound=1.0)
    figures.show("memory of both", memory / 2**20, "MiB", bound=120)


def cold(figures: Figures) -> None:
    """`run` in a new folder: how long until its first package runs; the middle one of three."""
    document = "pilotage: 1\njob: cold\nstages:\n  - shell: date +%s.%N > began\n    outputs: [began]\n"
    taken = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as name:
            (Path(name) / "pilotage.yaml").write_text(document)
            environment = {**os.environ, "PILOTAGE_JOURNAL_URL": "sqlite:.pilotage"}
            asked_at = time.time()
            subprocess.run([*PROGRAM, "run", "--json"], cwd=name, env=environment, check=True, capture_output=True)
            taken.append(float((Path(name) / "began").read_text()) - asked_at)
            subprocess.run([*PROGRAM, "serve", "--stop"], cwd=name, env=environment, check=False, capture_output=True)
    print("cold: `pilotage run` in a new folder")
    figures.show("to the first package, by the clock", sorted(taken)[1], "s", bound=1.0)


def main() -> None:
    """Print every figure with its bound; exit code 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="a million submitted")
    parser.add_argument("--only", choices=("A", "B", "C", "D", "idle", "cold"))
    options = parser.parse_args()
    figures = Figures()
    if options.only in (None, "A"):
        short_ones(figures, count=5000)
    if options.only in (None, "B"):
        sleepers(figures, count=1000)
    if options.only in (None, "C"):
        files(figures)
    if options.only in (None, "D"):
        many(figures, count=10**6 if options.full else 10**5)
    if options.only in (None, "idle"):
        idle(figures)
    if options.only in (None, "cold"):
        cold(figures)
    figures.done()


if __name__ == "__main__":
    main()
