"""Which parts of a folder of records were found damaged: their content is stored anew when it comes again.

Marks are lines that any process appends, a reader next to a writer too; of each part the last one counts. A wrong mark costs a
second copy of a part, a lost one only the healing.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Set
from pathlib import Path

log = logging.getLogger(__name__)

_LINE = re.compile(r"([0-9a-f]{64}) (damaged|healed)")


class DamageMarks:
    """The marks of one folder, in a file that is there once damage was found."""

    def __init__(self, file: Path) -> None:
        """Take the file; it is read when it is needed, and again when it has changed."""
        self._file = file
        self._read_at: tuple[int, int] | None = None
        self._damaged: set[bytes] = set()

    def damaged(self) -> Set[bytes]:
        """The digests of the parts that were found damaged, and were not stored anew since."""
        try:
            about = self._file.stat()
        except FileNotFoundError:
            return self._damaged
        if (about.st_size, about.st_mtime_ns) != self._read_at:
            self._read_at = about.st_size, about.st_mtime_ns
            last = dict(_LINE.findall(self._file.read_text(encoding="ascii", errors="replace")))
            self._damaged = {bytes.fromhex(sha256) for sha256, state in last.items() if state == "damaged"}
        return self._damaged

    def add(self, digests: Collection[bytes]) -> None:
        """These parts were found damaged."""
        self._append(set(digests) - self.damaged(), "damaged")
        self._damaged |= set(digests)

    def heal(self, digests: Iterable[bytes]) -> None:
        """These parts were stored anew."""
        healed = self.damaged() & set(digests)
        self._append(healed, "healed")
        self._damaged -= healed

    def _append(self, digests: Collection[bytes], state: str) -> None:
        if not digests:
            return
        lines = "".join(f"{sha256.hex()} {state}\n" for sha256 in sorted(digests))
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, lines.encode())
            finally:
                os.close(descriptor)
        except OSError as fault:  # such as a copy of a storage that may only be read
            log.warning("damaged parts cannot be marked in %s: %s", self._file, fault)
