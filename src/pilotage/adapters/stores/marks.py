"""Mark files in the folders of a job, by which an agent recognises these folders and no others at the same paths."""

from __future__ import annotations

import itertools
import logging
import os
from contextlib import suppress

from pilotage.agent.attempt.files import MARK_BYTES_MAX, MARK_FILE
from pilotage.ports.job_tree import Mark

# Paths are strings here, as in the store.
# ruff: noqa: PTH103, PTH104, PTH106, PTH108, PTH118, PTH120, PTH123, PTH208

log = logging.getLogger(__name__)

_DRAFT = f".{MARK_FILE}-"
_TEXT_BYTES = 16
_KEPT_MAX = MARK_BYTES_MAX // (2 * _TEXT_BYTES + 1) - 1


def is_mark(name: str) -> bool:
    """Tell whether a file beside staged outputs is a mark, or a draft of one."""
    return name == MARK_FILE or name.startswith(_DRAFT)


class Marks:
    """The marks of one store. Each start adds a line, which a copy of the folder does not have.

    Earlier lines stay, for agents that run work of an earlier service.
    """

    def __init__(self, beside: str) -> None:
        self._beside = beside
        self._text = os.urandom(_TEXT_BYTES).hex()
        self._drafts = itertools.count(1)

    def make(self, folder: str, job: str, *, staged: str) -> Mark:
        """Mark the staging folder, and the tree itself if it is elsewhere.

        A folder that cannot be written gets no mark: agents then count it as not visible, and transfer all files.
        """
        if not self._write(staged):
            return Mark()
        if staged.startswith(f"{folder.rstrip('/')}/"):
            return Mark(self._text)
        name = f"{self._beside}/{job}"
        return Mark(self._text, f"{name}/{MARK_FILE}" if self._write(os.path.join(folder, name)) else "")

    def remove(self, folder: str, job: str) -> None:
        """Remove the mark of a job from a tree, with its folder if that is empty."""
        path = os.path.join(folder, self._beside, job)
        with suppress(OSError):
            for name in os.listdir(path):
                if is_mark(name):
                    os.unlink(os.path.join(path, name))
            os.rmdir(path)
            os.rmdir(os.path.dirname(path))

    def _write(self, folder: str) -> bool:
        """Write the mark atomically; returns whether that worked."""
        file, draft = os.path.join(folder, MARK_FILE), os.path.join(folder, f"{_DRAFT}{next(self._drafts)}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            lines = [line for line in _lines(file) if line != self._text][-_KEPT_MAX:]
            with open(draft, "w", encoding="ascii") as written:
                written.writelines(f"{line}\n" for line in [*lines, self._text])
            os.rename(draft, file)
        except OSError as fault:
            log.warning("cannot mark %s; agents do not use it directly, and transfer files instead: %s", folder, fault)
            with suppress(OSError):
                os.unlink(draft)
            return False
        return True


def _lines(file: str) -> list[str]:
    """The lines of a mark."""
    try:
        with open(file, encoding="ascii") as written:
            return [line for line in written.read(MARK_BYTES_MAX).split("\n") if len(line) == 2 * _TEXT_BYTES]
    except (FileNotFoundError, UnicodeDecodeError):
        return []
