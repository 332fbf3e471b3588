"""The environment of an application: the agent's own without its secrets, and who the application is."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = "PILOTAGE_"
_ENCODING = sys.getfilesystemencoding()
_THREADS = "OMP_NUM_THREADS"
OWN_NAMES = tuple(
    f"{_OURS}{name}"
    for name in (
        "JOB", "PACKAGE", "ATTEMPT", "PATH", "EPOCH", "INDEX", "SEEN", "CORES", "MEMORY_BYTES", "GPUS",
        "NODES", "SCRATCH", "FOLDER",
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
    demand = assignment.get("demand")
    if demand:
        given = (demand.get("cores_hundredths", 100), demand.get("memory_bytes", 0), demand.get("gpus", 0))
        entries += _common_entries(*given, demand.get("nodes", 1), scratch, work["folder"])
    else:
        entries += _common_entries(100, 0, 0, 1, scratch, work["folder"])
    return entries


@lru_cache(maxsize=256)
def _common_entries(
    cores_hundredths: int, memory_bytes: int, gpus: int, nodes: int, scratch: str, folder: str
) -> list[bytes]:
    """The part that is the same for most attempts of a slot."""
    text = (
        f"PILOTAGE_CORES={cores_hundredths / 100:g}\0PILOTAGE_MEMORY_BYTES={memory_bytes}\0PILOTAGE_GPUS={gpus}\0"
        f"PILOTAGE_NODES={nodes}\0PILOTAGE_SCRATCH={scratch}\0PILOTAGE_FOLDER={folder}"
    )
    return os.fsencode(text).split(b"\0")


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
