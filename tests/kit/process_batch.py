"""A batch system of processes for tests: quick, in one folder, and as careful as a real one; and the dialect that speaks to it.

It is reached by a command of its own, `procbatch`. What it took is on disk before it says so; a job is started by a process
that nobody waits for. The dialect is one file, put into the agent as anybody could put theirs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

DIALECT = '''"""The batch system of the tests."""

from pilotage.agent.batch.dialect import Dialect
from pilotage.agent.batch.values import answered
from pilotage.agent.batch.values import Busy, Call, Limits, Refused, BatchJob, Unknown

ENDS = {"0": "ended", "143": "cancelled", "137": "killed"}


class Processes(Dialect):
    name = "procbatch"
    mark = "#PROC"
    index_variable = "PROC_INDEX"
    version_words = ("procbatch", "version")
    version_pattern = r"^procbatch ([0-9.]+)"

    def submit(self, wanted):
        return Call(("procbatch", "submit", self.job_name(wanted.key), str(wanted.count)), self.script(wanted))

    def submitted(self, wanted, answer):
        if answer.exit_status == 2:
            raise Busy(answer.stderr)
        if answer.exit_status == 3:
            raise Refused("bad-queue", answer.stderr)
        if answer.exit_status != 0:
            raise Unknown(answer.stderr)
        job = answer.stdout.strip()
        return self.ids(wanted, lambda index: f"{job}.{index}")

    def listing(self):
        return Call(("procbatch", "list"))

    def listed(self, answer):
        found = {}
        for line in answered(answer).splitlines():
            native, name, count, index, state = line.split()
            key = self.key(name, int(index) if count != "1" else None)
            if key is not None:
                ended = state not in ("queued", "running")
                found[key] = BatchJob(native, "ended" if ended else state, ENDS.get(state, "failed") if ended else "")
        return found

    def cancel(self, native_ids):
        return Call(("procbatch", "cancel", *native_ids.values()))

    def limits(self):
        return []

    def limited(self, answers):
        return Limits()
'''

_ELEMENT = 'echo $$ >"$1/pid"; sh "$2" </dev/null >/dev/null 2>&1; echo $? >"$1/.exit"; mv "$1/.exit" "$1/exit"'


class ProcessBatch:
    """A folder with such a system in it, from the side of a test."""

    def __init__(self, folder: Path, *, within: Sequence[str] = (), python: str = sys.executable) -> None:
        """Make it; `within` goes before whatever it starts, and `python` runs its command."""
        self.folder = folder
        self.jobs = folder / "jobs"
        self.jobs.mkdir(parents=True)
        (folder / "bin").mkdir()
        program = folder / "bin" / "procbatch"
        words = [python, str(Path(__file__).resolve()), str(folder)]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        self.within(within)

    def within(self, words: Sequence[str]) -> None:
        """Have these go before whatever is started from now on."""
        (self.folder / "within").write_text("\n".join(words))

    def environment(self) -> dict[str, str]:
        """How its command is found."""
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def names(self) -> list[str]:
        """The name of every job that was ever taken, with the index where it is an array."""
        told = []
        for job in sorted(each for each in self.jobs.iterdir() if not each.name.startswith(".")):
            name, count = (job / "name").read_text().split()
            told += [name] if count == "1" else [f"{name}[{index}]" for index in range(int(count))]
        return told

    def keys(self) -> list[str]:
        """The key of everything that was ever taken, once for each time."""
        told = []
        for name in self.names():
            first, _, index = name.partition(".")[2].partition("[")
            start, number = first.rsplit("-", 1)
            told.append(f"{start}-{int(number) + int(index.rstrip(']') or 0)}")
        return told

    def end(self) -> None:
        """End everything that it started."""
        for pid_file in self.jobs.glob("*/*/pid"):
            if not (pid_file.parent / "exit").exists():
                signal_tree(int(pid_file.read_text()), signal.SIGKILL)

    def queued(self) -> int:
        """How many jobs were taken and are neither started nor ended."""
        waiting = [each for each in self.jobs.iterdir() if not each.name.startswith(".")]
        return sum(not (each / "started").exists() for each in waiting)

    def is_asked(self) -> bool:
        """Whether somebody is submitting now."""
        return any(self.jobs.glob(".*"))

    def say(self, what: str) -> None:
        """Be `busy`, `refused`, `down` or `slow` from now on, start nothing that comes (`held`), or be well again."""
        (self.folder / "mood").write_text(what)


def pack_agent(file: Path) -> Path:
    """The agent in one file, with the dialect of the tests in it."""
    from pilotage.adapters.sites.zipapp import build

    build(file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("pilotage/agent/batch/procbatch.py", DIALECT)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def give_dialect(home: Path) -> None:
    """Have a service know the batch system of the tests, as it knows any that somebody added."""
    dialects = home / ".pilotage" / "dialects"
    dialects.mkdir(mode=0o700, parents=True)
    dialects.parent.chmod(0o700)
    (dialects / "procbatch.py").write_text(DIALECT)


# --- the command -----------------------------------------------------------------------------------------------------


def _mood(folder: Path) -> str:
    return (folder / "mood").read_text() if (folder / "mood").exists() else ""


def _start_waiting(folder: Path) -> None:
    """In a process of its own: start what waits, once."""
    if _mood(folder) == "held":
        return
    if os.fork():
        os.wait()
        return
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if os.fork():
        os._exit(0)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        within = [word for word in (folder / "within").read_text().split("\n") if word]
        for job in sorted((folder / "jobs").iterdir()):
            if job.name.startswith(".") or (job / "started").exists():
                continue
            (job / "started").touch()
            for index in range(int((job / "name").read_text().split()[1])):
                element = job / str(index)
                element.mkdir()
                words = [*within, "sh", "-c", _ELEMENT, "sh", str(element), str(job / "script")]
                environment = {**os.environ, "PROC_INDEX": str(index)}
                subprocess.Popen(words, env=environment, start_new_session=True)
    os._exit(0)


def _submit(folder: Path, name: str, count: int) -> int:
    mood = _mood(folder)
    slow_seconds = 0.2 if mood == "slow" else 0.0
    if mood not in ("", "slow", "held"):
        sys.stderr.write(f"procbatch is {mood}\n")
        return {"busy": 2, "refused": 3}.get(mood, 1)
    jobs = folder / "jobs"
    draft = jobs / f".{os.getpid()}"
    draft.mkdir()
    (draft / "name").write_text(f"{name} {count}")
    (draft / "script").write_text(sys.stdin.read())
    threading.Event().wait(slow_seconds)
    number = 1
    while True:
        try:
            draft.rename(jobs / f"{number:06d}")
            break
        except OSError:
            number += 1
    threading.Event().wait(slow_seconds)
    _start_waiting(folder)
    sys.stdout.write(f"{number:06d}\n")
    return 0


def _state(element: Path) -> str:
    if (element / "exit").exists():
        return (element / "exit").read_text().strip()
    if not (element / "pid").exists():
        return "queued"
    pid = (element / "pid").read_text().strip()
    if pid and not Path(f"/proc/{pid}").exists():
        return (element / "exit").read_text().strip() if (element / "exit").exists() else "137"
    return "running"


def _list(folder: Path) -> int:
    if _mood(folder) == "down":
        return 1
    for job in sorted(each for each in (folder / "jobs").iterdir() if not each.name.startswith(".")):
        name, count = (job / "name").read_text().split()
        for index in range(int(count)):
            sys.stdout.write(f"{job.name}.{index} {name} {count} {index} {_state(job / str(index))}\n")
    _start_waiting(folder)
    return 0


def _cancel(folder: Path, natives: list[str]) -> int:
    for native in natives:
        job, _, index = native.partition(".")
        element = folder / "jobs" / job / index
        if not (folder / "jobs" / job / "started").exists():
            element.mkdir()
            (element / "exit").write_text("143")
            (folder / "jobs" / job / "started").touch()
        elif (element / "pid").exists() and not (element / "exit").exists():
            signal_tree(int((element / "pid").read_text()), signal.SIGTERM, but_first=True)
    return 0


def signal_tree(pid: int, number: int, *, but_first: bool = False) -> None:
    """Signal a process and all of its descendants, whatever session they are in."""
    found = [] if but_first else [pid]
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{each}/task").iterdir():
                children = [int(word) for word in (thread / "children").read_text().split()]
                found += children
                waiting += children
    for each in found:
        with contextlib.suppress(OSError):
            os.kill(each, number)


def _main(folder: Path, word: str, *rest: str) -> int:
    if word == "version":
        sys.stdout.write("procbatch 1.0\n")
        return 0
    if word == "submit":
        return _submit(folder, rest[0], int(rest[1]))
    return _list(folder) if word == "list" else _cancel(folder, list(rest))


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), *sys.argv[2:]))
