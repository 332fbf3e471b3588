"""Processes set apart from the rest of the machine, which all end together: what a computer of a cluster is to its tests."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.engines.debian import ensure_programs
from tests.engines.errors import EngineError

RUN_SECONDS_MAX = 60


class CannotIsolate(EngineError):
    """The system does not let us make namespaces: that is for root, and not in every container."""


class Capsule:
    """Namespaces of processes and mounts, and on request of the network, with a first process that waits for its input to end.

    The tests hold that input. However they end, by SIGKILL too, it ends with them, and with the first process every
    other one in here.
    """

    def __init__(
        self,
        *,
        network: bool = False,
        beside: Capsule | None = None,
        hostname: str = "",
        remove: Path | None = None,
        prepare: Sequence[str] = (),
    ) -> None:
        """Make it; with a network of its own, or beside another in its network. A folder is removed in the end.

        What there is to `prepare` are commands for a shell in there, such as mounts, before anything else.
        """
        programs = ensure_programs(["unshare", "nsenter", "ip"], packages=["util-linux", "iproute2"])
        self._nsenter = programs["nsenter"]
        self.network: bool = network or (beside is not None and beside.network)
        self._host = bool(hostname)
        ip = programs["ip"]
        own = [flag for flag, wanted in (("--net", network), ("--uts", self._host)) if wanted]
        script = [
            *prepare,
            # With nothing but 127.0.0.1, the resolver would not tell the address of any name.
            *([f"{ip} link set lo up", f"{ip} address add 192.0.2.1/32 dev lo"] if network else []),
            *([f"hostname {shlex.quote(hostname)}"] if hostname else []),
            "echo ready",
            "cat >/dev/null",
            *([f"rm -rf {shlex.quote(str(remove))}"] if remove is not None else []),
        ]
        words = [programs["unshare"], "--pid", "--mount", *own, "--fork", "--kill-child=SIGKILL", "--mount-proc", "--"]
        within = [] if beside is None or not beside.network else [self._nsenter, "-t", str(beside.pid), "-n", "--"]
        self._process = subprocess.Popen(
            [*within, *words, "sh", "-c", " && ".join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the tests, which then clean up in order
        )
        try:
            assert self._process.stdout is not None
            if self._process.stdout.readline() != b"ready\n":
                raise CannotIsolate(f"no namespaces here: {self._process.communicate()[1].decode().strip()}")
            self.pid: int = self._first()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Capsule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def within(self) -> list[str]:
        """What goes before a command for it to run in here."""
        flags = ["-p", "-m", *(["-n"] if self.network else []), *(["-u"] if self._host else [])]
        return [self._nsenter, "-t", str(self.pid), *flags, "--"]

    @property
    def networked(self) -> list[str]:
        """What goes before a command for it to use the network of this place, and nothing else of it."""
        return [self._nsenter, "-t", str(self.pid), "-n", "--"] if self.network else []

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command in here; what it printed. Raises `EngineError` where it fails."""
        done = subprocess.run(
            [*self.within, *words],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"{shlex.join(words)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def close(self) -> None:
        """End everything in here; nothing happens the second time."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.communicate()

    def kill(self) -> None:
        """End everything in here at once and with nothing tidied, as when a computer loses its power."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the first process, and with it all others; `unshare` waits for that
        self.close()

    def _first(self) -> int:
        """The process number, outside, of the first process in here."""
        pid = self._process.pid
        # Where it was started beside another, the same process became what makes the namespaces.
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if len(children) != 1:
            raise EngineError(f"expected one first process, got {children}")
        return int(children[0])


def kill_in(capsule: Capsule, pid_file: Path) -> None:
    """Kill the one process of a capsule whose number, as it is in there, stands in a file."""
    capsule.run("kill", "-KILL", pid_file.read_text().strip())
