"""The one command of a task, from the binaries of a package."""

from __future__ import annotations

import shlex

from pilotage.language.expansion.packages import SHELL, ConcreteBinary, ConcretePackage
from pilotage.language.losses import Losses

COMMAND = "package.binaries"


def command_of(package: ConcretePackage, losses: Losses) -> tuple[str, ...]:
    """Program and arguments; what one command cannot say becomes a line for the shell. Empty where nothing is run."""
    if package.startup:
        if package.binaries:
            losses.add(COMMAND, "the startup script is the command; the binaries it runs are not named", file="")
        return _safe(package.startup, losses)
    if not package.binaries:
        losses.add(COMMAND, "a package without a binary is a task without a command", file="")
        return ()
    if len(package.binaries) == 1 and not _redirected(package.binaries[0]):
        return _safe(package.binaries[0].argv, losses)
    if len(package.binaries) > 1:
        losses.add(COMMAND, "a task has one command: several binaries became one line for the shell", file="")
    if any(map(_redirected, package.binaries)):
        losses.add(
            "binary.stdout", "a task has no streams: stdin, stdout and stderr became a line for the shell", file=""
        )
    return (*SHELL, " && ".join(_shell_line(binary) for binary in package.binaries))


def _safe(argv: tuple[str, ...], losses: Losses) -> tuple[str, ...]:
    if all(argv):
        return argv
    losses.add(
        "binary.arguments", "WfFormat forbids an empty argument: the command became a line for the shell", file=""
    )
    return (*SHELL, shlex.join(argv))


def _redirected(binary: ConcreteBinary) -> bool:
    return bool(binary.stdin or binary.stdout or binary.stderr)


def _shell_line(binary: ConcreteBinary) -> str:
    line = shlex.join(binary.argv)
    for sign, name in (("<", binary.stdin), (">", binary.stdout)):
        if name:
            line += f" {sign} {shlex.quote(name)}"
    if binary.stderr:
        line += " 2>&1" if binary.stderr == binary.stdout else f" 2> {shlex.quote(binary.stderr)}"
    return line
