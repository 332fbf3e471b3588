"""A program that outlives the tests: when its standard input ends, it ends a server and removes its folder.

The tests hold the other end of that pipe. However they end, by SIGKILL too, the pipe ends with them.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PATIENCE_MILLISECONDS = 5000


def watch(folder: Path) -> subprocess.Popen[bytes]:
    """Start a watchdog over a folder; closing its standard input lets it clean up, and `wait` waits for that."""
    # A session of its own: an interrupt from the terminal is for the tests, which then clean up in order.
    return subprocess.Popen(
        [sys.executable, "-I", __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[int]:
    """The processes whose command names the folder's data: the server, and whoever is about to start it."""
    wanted = os.fsencode(folder / "data")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def end(process: int, *, by: signal.Signals) -> None:
    """Send a signal and wait until the process is gone, but not for ever."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            signal.pidfd_send_signal(handle, by)
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            waiting.poll(PATIENCE_MILLISECONDS)
        finally:
            os.close(handle)


def clean_up(folder: Path) -> None:
    """End every process of the folder, at once if it can be and by force if it must, and remove the folder."""
    # SIGQUIT is PostgreSQL's immediate shutdown. Twice, for a server that was being started while we looked.
    for by in (signal.SIGQUIT, signal.SIGQUIT, signal.SIGKILL):
        for process in processes_of(folder):
            end(process, by=by)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean_up(Path(sys.argv[1]))
