"""Commands of the batch system, run on this computer for the agent of a site, and what batch systems there are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from pilotage.agent.batch import Answer, dialects

if TYPE_CHECKING:
    from collections.abc import Callable

    from pilotage.agent.batch import Call

CALL_SECONDS = 50.0
"""So long a command may take: where one hangs, that is told within a minute."""
_NOT_FOUND = 127
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
# Looked up here: between fork and exec nothing may be imported.
_prctl: Any = getattr(ctypes.CDLL(None), "prctl", None)


def run_here(call: Call, *, seconds: float = CALL_SECONDS) -> Answer:
    """Run a command, without a shell and for a limited time; without an exit status where it did not end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PILOTAGE_")}
    try:
        process = subprocess.Popen(
            call.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
            # A submission that outlives who asked for it could come to something after it was looked for.
            preexec_fn=_die_with_us,  # noqa: PLW1509 # it makes one system call, and no lock is taken
        )
    except (FileNotFoundError, PermissionError) as error:
        return Answer(_NOT_FOUND, "", f"{call.argv[0]}: {error.strerror}")
    except OSError as error:
        return Answer(None, "", f"{call.argv[0]}: {error}")
    with process:
        try:
            said = process.communicate(call.stdin.encode("utf-8", "surrogateescape"), timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it started, which holds its output open
            process.communicate()
            return Answer(None, "", f"{call.argv[0]} did not end within {seconds:g} s")
    stdout, stderr = (text.decode("utf-8", "surrogateescape") for text in said)
    return Answer(process.returncode, stdout, stderr)


def _die_with_us() -> None:
    if _prctl is not None:
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def schedulers_here(run: Callable[[Call], Answer] = run_here) -> dict[str, str]:
    """The batch systems whose commands are here, with their versions; those that were tried on real ones first."""
    found = {}
    for name, kind in sorted(dialects().items(), key=lambda each: (each[1].experimental, each[0])):
        dialect = kind("pilotage")
        version = dialect.version(run(dialect.is_here())) if dialect.version_words else ""
        if version:
            found[name] = version
    return found
