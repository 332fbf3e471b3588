"""Two lines in the user's own crontab, by which the agent of a site comes back when its computer does, and where it was killed.

Both start it in a login shell: cron itself gives next to nothing, and the commands of the batch system would not be found.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from pilotage.agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMES = ("@reboot", "*/5 * * * *")
"""When it is started: one that runs is left alone."""
_NONE_YET = "no crontab for"
_SECONDS = 30


class NoCrontab(AgentError):
    """There is no crontab here, or it may not be used; the message says what to do instead."""


def mark_of(folder: Path) -> str:
    """What the lines of a folder's agent end with, by which they are known again."""
    return f"# pilotage site agent {folder}"


def lines_for(command: Sequence[str], folder: Path, *, log: Path) -> list[str]:
    """The lines: the command in a login shell at each of its times, and what it says in a file, but nothing of the profile."""
    shell = shutil.which("bash") or "/bin/sh"
    script = f'exec "$@" >>{shlex.quote(str(log))} 2>&1'
    words = f"{shlex.join([shell, '-l', '-c', script, shell, *command])} >/dev/null 2>&1"
    if any(char in words + str(folder) for char in "\n\r"):
        raise NoCrontab("a line of a crontab cannot hold a name of several lines", subject=str(folder))
    # A % ends the command in a crontab, unless a backslash stands before it.
    return [f"{when} {words} {mark_of(folder)}".replace("%", "\\%") for when in TIMES]


def install(command: Sequence[str], folder: Path, *, log: Path) -> bool:
    """Put the lines into the crontab, in place of older ones; whether that changed anything."""
    before = _read()
    after = [*_others(before, folder), *lines_for(command, folder, log=log)]
    return _write(before, after)


def uninstall(folder: Path) -> bool:
    """Remove the lines; whether there was one."""
    before = _read()
    return _write(before, _others(before, folder))


def _others(lines: Sequence[str], folder: Path) -> list[str]:
    mark = mark_of(folder).replace("%", "\\%")
    starts = tuple(f"{when} " for when in TIMES)
    return [line for line in lines if not (line.startswith(starts) and line.endswith(f" {mark}"))]


def _program() -> str:
    program = shutil.which("crontab")
    if program is None:
        raise NoCrontab(
            "there is no crontab here",
            next_step="start the agent again by hand after a restart of this computer, or by what the site offers instead",
        )
    return program


def _read() -> list[str]:
    done = subprocess.run(
        [_program(), "-l"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False
    )
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and _NONE_YET not in said:
        raise NoCrontab("the crontab cannot be read", got=said, next_step="ask the site whether you may use cron")
    return done.stdout.decode("utf-8", "surrogateescape").splitlines() if not done.returncode else []


def _write(before: Sequence[str], after: Sequence[str]) -> bool:
    if list(before) == list(after):
        return False
    content = "".join(f"{line}\n" for line in after).encode("utf-8", "surrogateescape")
    done = subprocess.run([_program(), "-"], input=content, capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise NoCrontab("the crontab cannot be written", got=said, next_step="ask the site whether you may use cron")
    return True
