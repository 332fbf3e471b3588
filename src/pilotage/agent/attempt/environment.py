"""The environment of an application: the agent's own without its secrets, and who the application is."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pilotage.agent.resources import VARIABLES, room_of, told_amounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pilotage.agent.resources import Room

_OURS = "PILOTAGE_"
_ENCODING = sys.getfilesystemencoding()
_THREADS = "OMP_NUM_THREADS"
OWN_NAMES = tuple(
    f"{_OURS}{name}"
    for name in (
        "JOB", "PACKAGE", "ATTEMPT", "PATH", "EPOCH", "INDEX", "SEEN", *VARIABLES, "NODES", "SCRATCH", "FOLDER",
    )
)  # fmt: skip

TOLD_NAMES = tuple(f"{_OURS}{name}" for name in ("MARK", "SITE", "NODE", "SERVER", "CA_FILE", "TOKEN_FILE", "SPOOL"))
"""What an application is told besides: where it is, and how it speaks of itself."""


def base_environment(own: Mapping[str, str], **ours: str) -> dict[str, str]:
    """What every application of a pilot is given: nothing that the agent itself was told in PILOTAGE_ variables."""
    base = {name: value for name, value in own.items() if not name.startswith(_OURS)}
    base.update((f"{_OURS}{name}", value) for name, value in ours.items() if value)
    return base


def spool_name(ref: Mapping[str, Any]) -> str:
    """What the folder of the events of an attempt is called."""
    return f"{ref['job']}-{ref['package']}-{ref['attempt']}"


def own_entries(
    assignment: Mapping[str, Any], work: Mapping[str, Any], *, scratch: str, spools: str = ""
) -> list[bytes]:
    """Who an application is and what it may take, as entries in the order of `OWN_NAMES`.

    `spools` is the folder for the events of each attempt; without one, nothing is said of it.
    """
    ref = assignment["ref"]
    job, package, attempt = ref["job"], ref["package"], ref["attempt"]
    text = (
        f"PILOTAGE_JOB={job}\0PILOTAGE_PACKAGE={package}\0PILOTAGE_ATTEMPT={attempt}\0"
        f"PILOTAGE_PATH={work['path']}\0PILOTAGE_EPOCH={assignment.get('epoch', 1)}\0PILOTAGE_INDEX={work['index']}\0"
        f"PILOTAGE_SEEN={assignment.get('seen', 0)}"
    )
    if spools:
        text = f"{text}\0PILOTAGE_SPOOL={spools}/{job}-{package}-{attempt}"  # `spool_name`, without a call
    entries = text.encode(_ENCODING, "surrogateescape").split(b"\0")
    demand = assignment.get("demand") or {}
    return entries + _common_entries(room_of(demand), demand.get("nodes", 1), scratch, work["folder"])


@lru_cache(maxsize=256)
def _common_entries(room: Room, nodes: int, scratch: str, folder: str) -> list[bytes]:
    """The part that is the same for most attempts of a slot."""
    told = [*told_amounts(room), f"NODES={nodes}", f"SCRATCH={scratch}", f"FOLDER={folder}"]
    return [os.fsencode(f"{_OURS}{each}") for each in told]


class Environments:
    """Makes environments out of a base that is written down once."""

    def __init__(self, base: Mapping[str, str]) -> None:
        """Take what all of them have in common."""
        self._base = dict(base)
        self._written = _written(base)
        self._says_threads = _THREADS in base

    def make(self, ours: list[bytes], asked: Mapping[str, str], *, threads: int) -> list[bytes]:
        """The entries for a command: what the document asks for goes before the base, and what is ours before both.

        `threads` is how many a library may start that asks OpenMP's variable; 0: it is not said.
        """
        entries = self._written + ours
        if asked:
            fixed = {entry.partition(b"=")[0] for entry in ours}
            entries = [
                each for each in _written({**self._base, **asked}) if each.partition(b"=")[0] not in fixed
            ] + ours
        if threads and not self._says_threads and _THREADS not in asked:
            entries.append(b"OMP_NUM_THREADS=%d" % threads)
        return entries


def threads_of(demand: Mapping[str, Any]) -> int:
    """How many threads fit the cores of an attempt, where these are whole ones, or less than one; else 0.

    What spans several nodes has a process for each core.
    """
    hundredths = demand.get("cores_hundredths", 100)
    if demand.get("nodes", 1) > 1 or hundredths < 100:
        return 1
    return 0 if hundredths % 100 else hundredths // 100


def _written(variables: Mapping[str, str]) -> list[bytes]:
    return [os.fsencode(f"{name}={value}") for name, value in variables.items()]


# The token of what a slot runs: in one small file of the slot, which is written over for each attempt.
#
# There may be a thousand attempts a second, so the file is memory that the system shows as one: it is on no disk,
# and to write it costs neither a call nor a wait for other threads. It is sealed, so that nobody can cut it off
# under the pilot. Where there is no such memory it is a plain file beside the folder that the attempt works in, and
# not within: what is in there may be taken for an output.

SIZE_BYTES = 512
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class SlotToken:
    """A file that only this user can read, with the token of the attempt that runs, and line ends behind it."""

    def __init__(self, plain: str) -> None:
        """Make it; `plain` is where it is where memory will not do, and then it is made by the first attempt."""
        self._descriptor = -1
        self._memory: mmap.mmap | None = None
        self._plain = plain
        self.path = plain
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._use_memory()

    def _use_memory(self) -> None:
        descriptor = os.memfd_create("pilotage-token", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.truncate(descriptor, SIZE_BYTES)
            seals = 0
            for name in _SEALS:
                seals |= getattr(fcntl, name)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            os.stat(path)
            self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        except (OSError, AttributeError, ValueError):
            os.close(descriptor)
            raise
        self._memory[:] = b"\n" * SIZE_BYTES
        self._descriptor = descriptor
        self.path = path

    def show(self, token: str) -> None:
        """Have the file say this token, and nothing of the one before. Raises `OSError`."""
        content = token.encode("ascii", "replace").ljust(SIZE_BYTES, b"\n")
        if len(content) > SIZE_BYTES:
            raise OSError(f"a token of {len(content)} bytes is too long")
        if self._memory is not None:
            self._memory[:] = content
            return
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        os.pwrite(self._descriptor, content, 0)

    def plain_file(self) -> str:
        """A plain file that says the same, for who does not see the processes of this system. Raises `OSError`."""
        if self._memory is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._plain, flags, 0o600)
            try:
                os.write(descriptor, self._memory[:])
            finally:
                os.close(descriptor)
        return self._plain

    def close(self) -> None:
        """Let go of the file."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
