"""The command line in this process, in an empty folder, with nothing in the environment that a test did not put there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from pilotage.agent import batch
from pilotage.cli import main

ALIKE = frozenset([
    "attach", "book", "check", "clean", "convert", "drop", "events", "explain", "forecast", "graph", "hold", "kill", "log",
    "logs", "map", "outputs", "plan", "query", "release", "replicate", "restart", "restore", "retry", "rules", "run",
    "schema", "simulate", "statistics", "status", "submit", "tag", "watch", "why",
])  # fmt: skip
"""Commands that do in the process of a test what they do in their own."""
ALIKE_WITH = {
    "provenance": frozenset(["annotate", "export", "fsck", "import", "keep", "list", "show"]),
    "serve": frozenset(["--background", "--stop"]),
    "site": frozenset(["hibernate", "list", "show", "wake"]),
}
"""The words with which other commands do."""
_FOR_PYTHON = ("LD_", "PYTHON")  # variables that a process reads when it starts


def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in an empty folder, at home there, knowing no server."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SERVER", "TOKEN", "TOKEN_FILE", "CA_FILE", "JOB", "PACKAGE", "ATTEMPT", "EPOCH"):
        monkeypatch.delenv(f"PILOTAGE_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PILOTAGE_SPOOL", str(tmp_path / "spool"))


def run(*arguments: str, stdin: str = "") -> Result:
    """What a command prints and how it ends, which is never with a traceback."""
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: str, stdin: str = "") -> str:
    """What a command says that is refused."""
    result = run(*arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def can_be_typed(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command can be run in this process, for a fraction of what the start of a program costs."""
    command, rest = (words[0], {*words[1:]}) if words else ("", set())
    known = command in ALIKE or rest & ALIKE_WITH.get(command, frozenset())
    alike = all(os.environ.get(name) == value for name, value in environment.items() if name.startswith(_FOR_PYTHON))
    return bool(known) and alike and threading.current_thread() is threading.main_thread()


def typed(
    words: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """What the program prints in a folder, with these variables alone, and its exit code; it runs in this process."""
    done = typed_result(words, folder=folder, environment=environment, stdin=stdin)
    return subprocess.CompletedProcess(["pilotage", *words], done.exit_code, done.stdout, done.stderr)


def typed_result(words: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: str = "") -> Result:
    """As `typed`, and what was printed to both streams as a terminal shows it."""
    before = _children()
    with chdir(folder), mock.patch.dict(os.environ, dict(environment), clear=True), _dialects_as_before():
        done = run(*words, stdin=stdin)
    for child in _children() - before:  # a service: nobody is left to wait for its end
        threading.Thread(target=_await_end, args=(child,), daemon=True).start()
    return done


@contextmanager
def _dialects_as_before() -> Iterator[None]:
    """Forget the dialects of a state folder, which a process knows from its first command there on."""
    known, modules = list(batch.__path__), {*sys.modules}
    try:
        yield
    finally:
        added = [Path(each) for each in batch.__path__ if each not in known]
        batch.__path__[:] = known
        for name in [each for each in sys.modules.keys() - modules if each.startswith(f"{batch.__name__}.")]:
            if Path(sys.modules[name].__file__ or "").parent in added:
                del sys.modules[name]


def _children() -> set[int]:
    """The processes that this one has started and not waited for."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _await_end(process: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(process, 0)
