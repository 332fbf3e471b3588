"""Asks the real bosh, and us, what they make of a descriptor and an invocation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pilotage.language import boutiques
from pilotage.language.text.tree import Report

RUNNER = Path(__file__).with_name("bosh_runner.py")


class Answer(msgspec.Struct, frozen=True):
    """What became of a descriptor, alone or with an invocation."""

    verdict: str  # accept, refuse; of bosh also crash
    error: str = ""
    command: str = ""
    outputs: dict[str, str] = {}
    directory: str = ""
    codes: tuple[str, ...] = ()


class Bosh:
    """A process that imported boutiques once and answers question after question."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, descriptor: str, invocation: str | None = None) -> Answer:
        """What bosh says of the texts: `bosh validate`, or `bosh exec simulate -i` with an invocation."""
        question = {"descriptor": descriptor} | ({} if invocation is None else {"invocation": invocation})
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process that asks bosh has ended"
        return msgspec.json.decode(line, type=Answer)


@contextmanager
def running_bosh() -> Iterator[Bosh]:
    """Start the process, and end it at the end."""
    command = [sys.executable, "-W", "ignore", str(RUNNER)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield Bosh(process)


def ours(descriptor: str, invocation: str | None = None, *, directory: str = ".") -> Answer:
    """What we say of the same texts."""
    report = Report("descriptor.json", descriptor.splitlines())
    tool = boutiques.parse_descriptor(descriptor, report)
    if tool is None or invocation is None:
        return _answer(report)
    report = Report("invocation.json", invocation.splitlines())
    values = boutiques.parse_invocation(invocation, report)
    if not report.errors:
        boutiques.check_invocation(tool, values, report)
    if report.errors:
        return _answer(report)
    paths = boutiques.output_paths(tool, values, directory=directory)
    return Answer(
        "accept",
        command=boutiques.command_line(tool, values, directory=directory),
        outputs={output.id: output.path for output in paths if output.path is not None},
    )


def _answer(report: Report) -> Answer:
    codes = tuple(sorted({problem.code for problem in report.errors}))
    return Answer("refuse" if codes else "accept", error="\n".join(p.message for p in report.errors), codes=codes)
