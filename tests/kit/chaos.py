"""A storm over a running job: packages that misbehave at first, and a service and agents that are killed at random moments.

Every process is real, and every death is a SIGKILL. The moments come from a seeded generator; what is caught in them
differs from run to run all the same.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pilotage.agent.durable_files import text_of
from pilotage.agent.processes import started_at
from pilotage.service.announcement import find_service

PROGRAM = Path(sys.executable).with_name("pilotage")
STATE = ".pilotage"
SLOTS = 8
START_SECONDS = 60.0

Fault = Literal["none", "fail", "hang", "nothing", "gate"]
Victim = Literal["service", "agent", "supervisor", "both", "all"]
VICTIMS: Sequence[Victim] = ("service", "service", "agent", "agent", "supervisor", "both", "all", "all")

# The first time that a package with a fault is begun it misbehaves; a folder remembers that it did. The output is written
# in two halves: one that is published by an attempt that was killed in between is seen.
WORK = """\
#!/bin/sh
fault=$1 pause=$2 name=$3 output=$4
shift 4
if [ "$fault" = gate ]; then
  until [ -e "$PILOTAGE_FOLDER/calm" ]; do echo waiting; sleep 0.1; done
elif [ "$fault" != none ] && mkdir "$PILOTAGE_FOLDER/tried/$name" 2>/dev/null; then
  case $fault in
    fail) echo "never the first time" >&2; exit 3 ;;
    hang) sleep 1000 & exec sleep 1000 ;;
    nothing) exit 0 ;;
  esac
fi
echo "begin $name" > "$output"
[ $# -eq 0 ] || cat "$@" >> "$output"
sleep "$pause"
echo "end $name" >> "$output"
"""

DOCUMENT = """\
pilotage: 1
job: chaos
stages:
  - name: make
    each: {csv: makers.csv}
    run: [./work.sh, "{fault}", "{pause}", "m{name}", "part-{name}.txt"]
    outputs: ["part-{name}.txt"]
    progress: 2
    retry: &patient
      rules: [{reason: looping, action: again, times: 1000}, {reason: platform-failure, action: again, times: 1000}]
  - name: join
    each: {csv: joins.csv}
    run: [./work.sh, "{fault}", "{pause}", "j{name}", "whole-{name}.txt", "part-{left}.txt", "part-{right}.txt"]
    inputs: ["part-{left}.txt", "part-{right}.txt"]
    outputs: ["whole-{name}.txt"]
    progress: 2
    retry: *patient
"""

# Whoever dies of a hundred blows is not to blame for any, and nobody waits a minute for the next.
SETTINGS = """\
[engine]
interval_seconds = 0.5
pilot_kills_max = 1000
delay_seconds = 0
dead_start_seconds = 0
dead_starts_max = 0
agent_idle_seconds = 2

[selection]
hibernation_seconds_max_alone = 1
"""


class Spooled(NamedTuple):
    """An event that an agent had on its disk."""

    stream: str
    n: int
    type: str


class Job:
    """The job of a storm: its documents, its faults, and what its results must be."""

    def __init__(self, folder: Path, *, packages: int, chance: random.Random) -> None:
        self.makers = packages * 2 // 3
        self.joins = self.makers // 2
        self.faults: dict[str, Fault] = {}
        (folder / "tried").mkdir()
        (folder / "pilotage.yaml").write_text(DOCUMENT)
        (folder / "pilotage.toml").write_text(SETTINGS)
        (folder / "work.sh").write_text(WORK)
        (folder / "work.sh").chmod(0o755)
        pause = 45.0 / packages  # so that the storm rages while there is work
        for prefix, count, file in (("m", self.makers, "makers.csv"), ("j", self.joins, "joins.csv")):
            rows = []
            for number, fault in enumerate(_faults(count, chance), 1):
                self.faults[f"{prefix}{number}"] = fault
                rows.append([number, fault, f"{chance.uniform(0.2, 1.8) * pause:.3f}", 2 * number - 1, 2 * number])
            with (folder / file).open("w", newline="") as stream:
                csv.writer(stream).writerows([["name", "fault", "pause", "left", "right"], *rows])

    @property
    def packages(self) -> int:
        """How many there are."""
        return self.makers + self.joins

    @property
    def misbehaving(self) -> set[str]:
        """Those whose first try goes wrong."""
        return {name for name, fault in self.faults.items() if fault not in ("none", "gate")}

    def results(self) -> dict[str, str]:
        """Every file that there must be in the end, and what it says."""
        parts = {n: f"begin m{n}\nend m{n}\n" for n in range(1, self.makers + 1)}
        found = {f"part-{n}.txt": text for n, text in parts.items()}
        for n in range(1, self.joins + 1):
            found[f"whole-{n}.txt"] = f"begin j{n}\n{parts[2 * n - 1]}{parts[2 * n]}end j{n}\n"
        return found


def _faults(count: int, chance: random.Random) -> list[Fault]:
    """A tenth that fail, a twentieth that hang, a fiftieth that write nothing; the last waits until the storm is over."""
    shares: dict[Fault, int] = {"fail": count // 10, "hang": count // 20, "nothing": count // 50}
    found: list[Fault] = [fault for fault, share in shares.items() for _ in range(share)]
    found += ["none"] * (count - 1 - len(found))
    chance.shuffle(found)
    return [*found, "gate"]


class Storm:
    """The killing, and what was seen meanwhile."""

    def __init__(self, folder: Path, *, chance: random.Random) -> None:
        self.folder = folder
        self.state = folder / STATE
        self.kills: Counter[str] = Counter()
        self.spooled: set[Spooled] = set()
        self._chance = chance
        self._service: subprocess.Popen[bytes] | None = None
        self._clock = threading.Event()  # never set: to wait on
        self._log = folder / "service.log"

    # --- the service ---

    def begin_service(self) -> None:
        """Start a service; it does not answer yet."""
        with self._log.open("ab") as log:
            self._service = subprocess.Popen(
                [str(PROGRAM), "serve", "--port", "0", "--slots", str(SLOTS)],
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def await_service(self) -> None:
        """Wait until the service answers."""
        service = self._service
        assert service is not None

        def answers() -> bool:
            assert service.poll() is None, f"the service stopped by itself: {self._log.read_text()[-4000:]}"
            found = find_service(self.state)
            return found is not None and found.pid == service.pid

        self.wait_for(answers, seconds=START_SECONDS, what="the service answers")

    def stop_service(self) -> None:
        """End the service in good order, if it runs."""
        service, self._service = self._service, None
        if service is not None:
            service.terminate()
            service.wait(START_SECONDS)

    def _kill_service(self) -> None:
        service = self._service
        assert service is not None
        answered = find_service(self.state) is not None
        service.kill()
        service.wait()
        self.kills["service"] += 1
        self.kills["service that answered" if answered else "service that started"] += 1

    # --- the agents ---

    def pilots(self) -> list[tuple[int, list[int]]]:
        """The supervisors that live, each with its agent, if that lives."""
        found = []
        for record in (self.state / "pilots").glob("*.json"):
            try:
                said = json.loads(record.read_bytes())
            except (OSError, ValueError):
                continue
            if "pilot" in said and started_at(said["pid"]) == said["started"]:
                found.append((said["pid"], _children(said["pid"])))
        return found

    def _kill_agents(self, victim: Victim) -> None:
        for supervisor, agents in self.pilots():
            blows = [supervisor] if victim in ("supervisor", "both", "all") else []
            blows = blows + agents if victim != "supervisor" else blows
            self._chance.shuffle(blows)
            for pid in blows:
                with contextlib.suppress(ProcessLookupError):  # an agent ends with its supervisor
                    os.kill(pid, signal.SIGKILL)
            if blows:
                self.kills["agent"] += 1
                self.kills[f"{victim if victim != 'all' else 'both'} of a pilot"] += 1

    # --- the storm ---

    def rage(self, *, kills: int, seconds: float) -> None:
        """Kill services that answered and pilots that ran, so many of each at least, within a time."""
        until = time.monotonic() + seconds
        while self.kills["service"] < kills or self.kills["agent"] < kills:
            assert time.monotonic() < until, f"there is not enough to kill: {dict(self.kills)}"
            victim = self._next_victim(kills)
            self.pause(self._chance.uniform(0.0, 0.4))
            if victim in ("service", "all"):
                self._kill_service()
            if victim != "service":
                self._kill_agents(victim)
            self.note_spools()
            if victim in ("service", "all"):
                self.begin_service()
        self.await_service()

    def _next_victim(self, kills: int) -> Victim:
        """Who is next, once it is there: no service that need not, and mostly one that answers."""
        enough = self.kills["service"] >= kills
        found = [each for each in VICTIMS if each not in ("service", "all")] if enough else VICTIMS
        victim = self._chance.choice(found)
        if victim not in ("service", "all"):
            self.wait_for(self.pilots, seconds=START_SECONDS, what="an agent runs")
        elif self._chance.random() < 0.8:
            self.await_service()
        return victim

    def note_spools(self) -> None:
        """Remember what agents have on their disks: the book must have it in the end."""
        for file in (self.state / "spool").glob("*.events"):
            try:
                lines = file.read_bytes().split(b"\n")[:-1]
            except OSError:
                continue
            for line in lines:
                text = text_of(line)
                if text is not None:
                    said = json.loads(text)
                    self.spooled.add(Spooled(said["stream"], said["n"], said["type"]))

    # --- waiting, and what is left ---

    def pause(self, seconds: float) -> None:
        """Let the others go on for a while."""
        self._clock.wait(seconds)

    def wait_for(self, what_is: Callable[[], object], *, seconds: float, what: str) -> None:
        """Wait until something is so."""
        until = time.monotonic() + seconds
        while not what_is():
            assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
            self.pause(0.02)

    def processes(self) -> list[str]:
        """Agents of the state folder, and everything that they started, as text for people."""
        state, folder = os.fsencode(f"--state={self.state}"), os.fsencode(f"PILOTAGE_FOLDER={self.folder}")
        found = []
        for pid in _processes():
            words, variables = _read(pid, "cmdline").split(b"\0"), _read(pid, "environ").split(b"\0")
            marked = any(each.startswith(b"PILOTAGE_MARK=") for each in variables) and folder in variables
            if state in words or marked:
                found.append(f"{pid}: {' '.join(word.decode(errors='replace') for word in words)}")
        return found

    def left_over(self) -> list[str]:
        """Files of the state folder that no longer have a purpose when nothing runs."""
        places = ("scratch", "staged", "pilots", "spool", "kept")
        return [str(path) for place in places for path in (self.state / place).rglob("*") if not path.is_dir()]

    def end(self) -> None:
        """End everything that was started, whatever became of it."""
        if self._service is not None:
            self._service.kill()
            self._service.wait()
        while self.processes():
            for each in self.processes():
                try:
                    os.kill(int(each.partition(":")[0]), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.pause(0.02)


def environment() -> dict[str, str]:
    """The environment of a user who has set nothing."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")} | {"NO_COLOR": "1"}


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _processes() -> Iterator[int]:
    own = os.getpid()
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and int(entry.name) != own)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
