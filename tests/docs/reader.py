"""The executor of the documentation, part two: a reader who does what a page says and compares what happens.

The conventions of a page are told in `tests/docs/pages.py`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import Command, Enter, Script, Step, Write
from tests.kit.command_line import can_be_typed, typed_result
from tests.kit.real_runs import end_all

# What a reader does on another machine, or once in a lifetime: it is shown, and not run.
ELSEWHERE = ("git clone ", "cd pilotage", "pip install ", "pipx install ", "source <(pilotage completion")
SECONDS_MAX = 120
PLAIN = re.compile(r"pilotage [\w ./:=,@%+'\"-]+")  # nothing in it is for a shell, but for quotes
NEVER_COPIED = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".pilotage", ".pilotage-staged")


class Surprise(AssertionError):
    """What happened is not what the page says."""


class Reader:
    """Follows the steps of one page in a folder of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.home = folder / "home"
        self.cwd = folder / "start"
        self.copies = folder / "copies"
        for made in (self.home, self.cwd, self.copies):
            made.mkdir(parents=True)

    def follow(self, step: Step) -> None:
        """Do what one step says; raises `Surprise` where something else happens."""
        match step:
            case Enter(folder=name):
                self._enter(name)
            case Write(name=name, text=text):
                file = self.cwd / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            case Script(line=line, text=text, output=output):
                printed, code = self._run([sys.executable, "-W", "error", "-c", text])
                compare(f"line {line}: the script", expected=output, printed=printed, codes=(0, code))
            case Command():
                self._command(step)

    def leave(self) -> None:
        """Stop what the page left running: agents, and a service, where it failed before it came to stop it."""
        for file in self.home.parent.rglob("service.json"):
            end_all(file.parent)

    def _enter(self, name: str) -> None:
        source = (self.root / name).resolve()
        if not source.is_dir() or not source.is_relative_to(self.root / "examples"):
            raise Surprise(f"<!-- folder: {name} --> is not a folder of examples")
        self.cwd = self.copies / str(len(list(self.copies.iterdir()))) / source.name
        shutil.copytree(source, self.cwd, ignore=NEVER_COPIED)

    def _command(self, command: Command) -> None:
        what = f"line {command.line}: {command.text}"
        if command.text.startswith("make ") and len(words := command.text.split()) == 2:
            recipe_of(self.root, target=words[1])
            if words[1] == "demo":
                self._demo(command)
        elif not command.text.startswith(ELSEWHERE):
            printed, code = self._shell(command.text)
            compare(what, expected=command.output, printed=printed, codes=(command.exit_code, code))

    def _demo(self, command: Command) -> None:
        """Run the demo as make does, in a copy of what it needs, with the environment that the tests run in."""
        stood, self.cwd = self.cwd, self.copies / str(len(list(self.copies.iterdir())))
        shutil.copytree(self.root / "examples", self.cwd / "examples", ignore=NEVER_COPIED)
        shutil.copy(self.root / "Makefile", self.cwd)
        printed, code = self._run(["make", "--no-print-directory", *_as_installed(self.root), "demo"])
        self.cwd = stood
        compare(f"line {command.line}: make demo", expected=command.output, printed=printed, codes=(0, code))

    def _shell(self, text: str) -> tuple[str, int]:
        if PLAIN.fullmatch(text) and can_be_typed(words := shlex.split(text)[1:], self._environment()):
            done = typed_result(words, folder=self.cwd, environment=self._environment())
            return done.output, done.exit_code
        where = self.home / "cwd"
        where.write_text(str(self.cwd))
        trap = f"trap 'pwd > {shlex.quote(str(where))}' EXIT\n"
        printed, code = self._run(["bash", "-c", trap + text])
        self.cwd = Path(where.read_text().strip())
        return printed, code

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            # Under make, its own flags and job server would leak into the one of the demo.
            if not name.startswith(("PILOTAGE_", "PYTEST_", "XDG_", "MAKE", "MFLAGS"))
        }
        return kept | {
            "HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
            "NO_COLOR": "1",
        }

    def _run(self, arguments: list[str]) -> tuple[str, int]:
        done = subprocess.run(
            arguments,
            cwd=self.cwd,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS_MAX,
            check=False,
        )
        return done.stdout.decode("utf-8", errors="replace"), done.returncode


def recipe_of(root: Path, *, target: str) -> list[str]:
    """The commands that a target of the Makefile would run, leaving out the making of the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--no-print-directory", *_as_installed(root), target]
    asked = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Surprise(f"make {target}: {asked.stderr.strip()}")
    return asked.stdout.splitlines()


def _as_installed(root: Path) -> list[str]:
    """Flags by which make takes the environment to be there."""
    stamps = re.findall(r"^\w+ := \$\(VENV\)/(\.installed-\w+)$", (root / "Makefile").read_text(), re.MULTILINE)
    return [argument for stamp in stamps for argument in ("--old-file", f".venv/{stamp}")]


def compare(what: str, *, expected: tuple[str, ...], printed: str, codes: tuple[int, int]) -> None:
    """Hold the output shown by a page, wildcards and all, and its exit code against what happened."""
    lines = [line.rstrip() for line in printed.rstrip("\n").split("\n")] if printed.strip() else []
    shown = [line.rstrip() for line in expected]
    while shown and not shown[-1]:
        shown.pop()
    wanted, got = codes
    if got != wanted or not _alike(shown, lines):
        page = "\n".join(f"  | {line}" for line in shown) or "  (nothing)"
        real = "\n".join(f"  | {line}" for line in lines) or "  (nothing)"
        raise Surprise(f"{what}\nthe page shows (exit code {wanted}):\n{page}\nit prints (exit code {got}):\n{real}")


def _alike(shown: list[str], lines: list[str]) -> bool:
    pattern = ""
    for line in shown:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(map(re.escape, line.split("..."))) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
