"""Whether the folders of a job are to be seen here: the very ones of its service, and no others at the same paths.

The service puts a mark into them, and each work says a line of it. Who can read it there sees the folder; everybody else
is brought what there is to read, and hands over what is to be kept. It is looked at again from time to time: a file
system may come, or go, or another take its place.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK_FILE = "mark"
MARK_BYTES_MAX = 1024
AGAIN_SECONDS = 30.0
REMEMBERED_MAX = 1024


class Seen(NamedTuple):
    """Which folders of a job are to be seen."""

    folder: bool  # the document's, with the files of the job
    staged: bool  # where outputs are put


class _Looked(NamedTuple):
    mark: str
    until: float
    seen: Seen


class Sight:
    """What a pilot sees of its jobs, remembered for a while. Its slots may ask at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing was looked at yet."""
        self._clock = clock
        self._looked: dict[str, _Looked] = {}  # by where outputs are put, which is each job's own

    def of(self, work: Mapping[str, Any]) -> Seen:
        """What is to be seen of the job of a work, as it was found when last looked at."""
        looked = self._looked.get(work["staged"])
        if looked is not None and looked.mark == work.get("mark") and self._clock() < looked.until:
            return looked.seen
        return self.look(work)

    def shows(self, work: Mapping[str, Any]) -> bool:
        """Whether commands may be shown the document's folder: one that could not be marked is taken for what it seems."""
        folder = work["folder"]
        if work.get("mark") and (work.get("folder_mark") or _is_below(work["staged"], folder)):
            return self.of(work).folder
        return os.path.isdir(folder)

    def look(self, work: Mapping[str, Any]) -> Seen:
        """Look now: something was not where it must be, or nobody has looked for long."""
        staged, folder, mark = work["staged"], work["folder"], work.get("mark", "")
        seen = NOTHING
        if mark:
            is_staged = _says(f"{staged}/{MARK_FILE}", mark)
            is_folder = is_staged
            if work.get("folder_mark"):
                is_folder = _says(f"{folder}/{work['folder_mark']}", mark)
            elif not _is_below(staged, folder):
                is_folder = False
            seen = Seen(is_folder, is_staged)
        if len(self._looked) >= REMEMBERED_MAX:
            self._looked.clear()
        self._looked[staged] = _Looked(mark, self._clock() + AGAIN_SECONDS, seen)
        return seen


NOTHING = Seen(folder=False, staged=False)


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def _says(file: str, mark: str) -> bool:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return mark.encode() in os.read(descriptor, MARK_BYTES_MAX).split(b"\n")
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return False
