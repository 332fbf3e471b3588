"""The environment of an application: the agent's own without secrets, plus variables that identify the attempt."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pilotage.agent.resources import VARIABLES, amounts_of, resources_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pilotage.agent.resources import Resources

_OURS = "PILOTAGE_"
_ENCODING = sys.getfilesystemencoding()
_THREADS = "OMP_NUM_THREADS"
OWN_NAMES = tuple(
    f"{_OURS}{name}"
    for name in (
        "JOB", "PACKAGE", "ATTEMPT", "PATH", "EPOCH", "INDEX", "SEEN", *VARIABLES, "NODES", "SCRATCH", "FOLDER",
    )
)  # fmt: skip

PLACE_NAMES = tuple(f"{_OURS}{name}" for name in ("MARK", "SITE", "NODE", "SERVER", "CA_FILE", "TOKEN_FILE", "SPOOL"))
"""Further variables for an application: where it runs, and how to log events."""


def base_environment(own: Mapping[str, str], **ours: str) -> dict[str, str]:
    """The common environment of a pilot's applications, without the agent's own PILOTAGE_ variables."""
    base = {name: value for name, value in own.items() if not name.startswith(_OURS)}
    base.update((f"{_OURS}{name}", value) for name, value in ours.items() if value)
    return base


def spool_name(ref: Mapping[str, Any]) -> str:
    """The name of an attempt's spool folder."""
    return f"{ref['job']}-{ref['package']}-{ref['attempt']}"


def own_entries(
    assignment: Mapping[str, Any], work: Mapping[str, Any], *, scratch: str, spools: str = ""
) -> list[bytes]:
    """The variables that identify an attempt and its resources, in the order of `OWN_NAMES`.

    `spools` is the folder of the spools; without it PILOTAGE_SPOOL is not set.
    """
    ref = assignment["ref"]
    job, package, attempt = ref["job"], ref["package"], ref["attempt"]
    text = (
        f"PILOTAGE_JOB={job}\0PILOTAGE_PACKAGE={package}\0PILOTAGE_ATTEMPT={attempt}\0"
        f"PILOTAGE_PATH={work['path']}\0PILOTAGE_EPOCH={assignment.get('epoch', 1)}\0PILOTAGE_INDEX={work['index']}\0"
        f"PILOTAGE_SEEN={assignment.get('seen', 0)}"
    )
    if spools:
        text = f"{text}\0PILOTAGE_SPOOL={spools}/{job}-{package}-{attempt}"  # `spool_name`, inlined
    entries = text.encode(_ENCODING, "surrogateescape").split(b"\0")
    demand = assignment.get("demand") or {}
    return entries + _common_entries(resources_of(demand), demand.get("nodes", 1), scratch, work["folder"])


@lru_cache(maxsize=256)
def _common_entries(resources: Resources, nodes: int, scratch: str, folder: str) -> list[bytes]:
    """The variables that are the same for most attempts of a slot."""
    values = [*amounts_of(resources), f"NODES={nodes}", f"SCRATCH={scratch}", f"FOLDER={folder}"]
    return [os.fsencode(f"{_OURS}{each}") for each in values]


class Environments:
    """Makes environments from a base that is encoded once."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._base = dict(base)
        self._written = _written(base)
        self._says_threads = _THREADS in base

    def make(self, ours: list[bytes], asked: Mapping[str, str], *, threads: int) -> list[bytes]:
        """The environment of a command: the document's variables override the base, ours override both.

        `threads` sets OMP_NUM_THREADS; 0: unset.
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
    """The number of threads for an attempt's cores; 0 unless these are whole, or less than one.

    A program on several nodes has a process per core.
    """
    hundredths = demand.get("cores_hundredths", 100)
    if demand.get("nodes", 1) > 1 or hundredths < 100:
        return 1
    return 0 if hundredths % 100 else hundredths // 100


def _written(variables: Mapping[str, str]) -> list[bytes]:
    return [os.fsencode(f"{name}={value}") for name, value in variables.items()]


# The token of a slot's attempt: one small file per slot, overwritten for each attempt.
#
# There may be a thousand attempts a second, so the file is anonymous memory (memfd): writing it needs neither a system
# call nor a lock. It is sealed, so that commands cannot truncate it under the pilot. Without memfd it is a plain file
# beside the attempt's folder, not inside: files in there may become outputs.

SIZE_BYTES = 512
_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


class SlotToken:
    """A file that only this user can read, with the token of the running attempt, padded with newlines."""

    def __init__(self, plain: str) -> None:
        """Make the file; if memfd is missing, the first attempt makes the `plain` file."""
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
        """Write a token over the one before. Raises `OSError`."""
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
        """A plain file with the same token, for containers that do not see this process. Raises `OSError`."""
        if self._memory is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._plain, flags, 0o600)
            try:
                os.write(descriptor, self._memory[:])
            finally:
                os.close(descriptor)
        return self._plain

    def close(self) -> None:
        """Close the file."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
