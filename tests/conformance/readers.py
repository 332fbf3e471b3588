"""Asks public programs what they make of our exports: they run in an environment of their own, made once and kept in build/."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PINS = HERE / "readers.txt"
RUNNER = HERE / "readers_runner.py"
BUILD = HERE.parents[1] / "build"


class Readers:
    """A process that imported them once and answers question after question; it must not use the network."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: str, **values: Any) -> Any:
        """The answer to a question, which the runner describes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"question": question, **values}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that asks the readers has ended"
        return json.loads(line)


@contextmanager
def running_readers(home: Path) -> Iterator[Readers]:
    """Start the process, and end it at the end; what it leaves behind is below `home`."""
    command = [str(_environment() / "bin" / "python"), "-I", "-W", "ignore", str(RUNNER)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment, cwd=home
    ) as process:
        yield Readers(process)


def _environment() -> Path:
    """The environment with the pinned programs, made by whoever comes first; skips where they cannot be installed."""
    pins = PINS.read_bytes() + sys.version.encode()
    made = BUILD / f"readers-{hashlib.sha256(pins).hexdigest()[:12]}"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "readers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (made / "ready").exists():
            return made
        shutil.rmtree(made, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
        python = str(made / "bin" / "python")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "-r", str(PINS)]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"public readers of our exports: they cannot be installed: {done.stderr.strip()[-500:]}")
        (made / "ready").touch()
    return made
