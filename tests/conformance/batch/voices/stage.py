"""What every played system is made of: it keeps jobs in a folder, runs them as processes here, and ends them.

Each command of a system is a program of its own in a folder for PATH, which calls this one. So whatever a dialect puts
around them, a shell for instance, is run as it would be there.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[4]
STATE_VARIABLE = "PLAYED_SYSTEM"
ARRAY_MAX = 100
_RUN = '"$@"; echo $? > "$PLAYED_STATUS.draft"; mv "$PLAYED_STATUS.draft" "$PLAYED_STATUS"'

Answered = tuple[int, str, str]


class Element(NamedTuple):
    """One job, or one element of an array."""

    job: int
    place: int  # its number in an array
    is_array: bool
    name: str
    state: str  # running or ended
    how: str  # cancelled, wall-time, or nothing where it ended by itself
    status: int


class Stage:
    """The jobs of a played system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def submit(
        self,
        *,
        name: str,
        indices: Sequence[int],
        is_array: bool,
        start: Callable[[int], tuple[list[str], Mapping[str, str]]],
        wall_seconds: int = 0,
        cwd: str = "/",
    ) -> int:
        """Start a process for each index, with the words and variables that `start` tells; the number of the job."""
        job = 1 + sum(1 for _ in self.folder.glob("*.job"))
        told = {"name": name, "array": is_array, "wall": wall_seconds, "started": time.time()}
        (self.folder / f"{job}.job").write_text(json.dumps({**told, "indices": list(indices)}))
        for index in indices:
            words, variables = start(index)
            mark = self.folder / f"{job}-{index}"
            process = subprocess.Popen(
                ["sh", "-c", _RUN, "played", *words],
                env={**os.environ, **variables, "PLAYED_STATUS": f"{mark}.status"},
                cwd=cwd or "/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            Path(f"{mark}.pid").write_text(str(process.pid))
        return job

    def elements(self) -> list[Element]:
        """Everything that was ever submitted, as it is now."""
        found = []
        for file in sorted(self.folder.glob("*.job"), key=lambda each: int(each.stem)):
            told, job = json.loads(file.read_text()), int(file.stem)
            for index in told["indices"]:
                mark = self.folder / f"{job}-{index}"
                if told["wall"] and time.time() > told["started"] + told["wall"]:
                    self.end(job, index, how="wall-time")
                status, how = Path(f"{mark}.status"), Path(f"{mark}.how")
                ended = status.exists() or how.exists()
                found.append(
                    Element(
                        job=job,
                        place=index,
                        is_array=told["array"],
                        name=told["name"],
                        state="ended" if ended else "running",
                        how=how.read_text() if how.exists() else "",
                        status=int(status.read_text()) if status.exists() else 0,
                    )
                )
        return found

    def end(self, job: int, index: int, *, how: str) -> bool:
        """End an element that still runs; whether there was one."""
        mark = self.folder / f"{job}-{index}"
        if not Path(f"{mark}.pid").exists() or Path(f"{mark}.status").exists() or Path(f"{mark}.how").exists():
            return False
        Path(f"{mark}.how").write_text(how)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(Path(f"{mark}.pid").read_text()), signal.SIGKILL)
        return True

    def close(self) -> None:
        """End whatever runs."""
        for element in self.elements():
            self.end(element.job, element.place, how="cancelled")


Command = Callable[[Stage, list[str], str], Answered]


def options(words: Sequence[str], *, flags: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Options with a word each, by name without dashes; and the words that are none."""
    found: dict[str, str] = {}
    others = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            others.append(word)
        elif word in flags:
            found[word.lstrip("-")] = ""
        else:
            found[word.lstrip("-")] = rest.pop(0)
    return found, others


def install(system: str, *, commands: Sequence[str], folder: Path, state: Path) -> None:
    """Put a program for each command of a system into a folder."""
    for command in commands:
        file = folder / command
        file.write_text(
            f'#!/bin/sh\n{STATE_VARIABLE}={state} exec {sys.executable} -S -I {__file__} {system} {command} "$@"\n'
        )
        file.chmod(0o755)


def _main() -> int:
    sys.path.insert(0, str(ROOT))
    system, command, *words = sys.argv[1:]
    voice: Any = importlib.import_module(f"tests.conformance.batch.voices.{system}")
    folder = Path(os.environ.pop(STATE_VARIABLE))
    if (folder / "down").exists():
        status, out, err = voice.DOWN
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if command in voice.READS else ""
        status, out, err = voice.COMMANDS[command](Stage(folder), words, text)
    sys.stdout.buffer.write(out.encode("utf-8", "surrogateescape"))
    sys.stderr.buffer.write(err.encode("utf-8", "surrogateescape"))
    return int(status)


if __name__ == "__main__":
    sys.exit(_main())
