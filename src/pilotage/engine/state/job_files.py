"""Which files the packages of a job still need: a count for each file, and an index of locators.

A million packages may need a file each, so a file costs four bytes here, and sixteen more once it is looked up by locator.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pilotage.model.jobs.file_plan import FilePlan, Wish
from pilotage.model.site import Site


class JobFiles:
    """The files of a job, and how many packages that may still run need each."""

    __slots__ = ("_hashes", "_numbers", "_wishes", "open_users", "plan")

    def __init__(self, plan: FilePlan, is_open: NDArray[np.bool_]) -> None:
        """Count the needs of the packages that are not over, given by number."""
        self.plan = plan
        self._wishes = plan.wishes.data
        rows = plan.needs
        each = is_open[rows.first : rows.first + len(rows.indptr) - 1]
        counts = np.bincount(rows.others[np.repeat(each, np.diff(rows.indptr))], minlength=plan.count)
        self.open_users = array("i", counts.astype(np.int32).tobytes())
        self._hashes: NDArray[np.int64] | None = None
        self._numbers: NDArray[np.int32] | None = None

    def of(self, package: int) -> Sequence[int]:
        """The files of a package."""
        return self.plan.needs.few(package)

    def needed(self, package: int, site: Site) -> Sequence[int]:
        """The files that a package needs at a site: of software, those for its platform."""
        return self.plan.needed(package, platform=site.platform)

    def locator(self, file: int) -> str:
        """The locator of a file."""
        return self.plan.locators[file]

    def size_bytes(self, file: int) -> int | None:
        """The size of a file, as far as the document says."""
        return int(self.plan.sizes_bytes[file]) or None

    def sha256(self, file: int) -> str:
        """The checksum that the document requires of a file; empty: any."""
        return self.plan.checksums[file] if self.plan.checksums is not None else ""

    def accepts(self, file: int, sha256: str) -> bool:
        """Whether a content is one that the document allows for a file."""
        return self.plan.checksums is None or self.plan.checksums[file] in ("", sha256)

    def wish(self, file: int) -> int:
        """How long the job wants a file to be kept: a `Wish`."""
        return int(self._wishes[file])

    def is_software(self, file: int) -> bool:
        """Whether a file is an archive of software."""
        return self.plan.software is not None and bool(self.plan.software[file])

    def must_be_present(self, file: int) -> bool:
        """Whether a file is not brought: it is at the site, or the package cannot run there."""
        return self.plan.present is not None and bool(self.plan.present[file])

    def released_by(self, package: int) -> list[str]:
        """The locators of the files that the job releases when a package is done."""
        released = self.plan.released
        return [self.plan.locators[file] for file in self.of(package) if released[file]]

    def open(self, package: int) -> None:
        """A package may run again."""
        users = self.open_users
        for file in self.plan.needs.few(package):
            users[file] += 1

    def close(self, package: int) -> list[str]:
        """A package is over: the locators of the files that no package of the job needs any more."""
        users, locators, gone = self.open_users, self.plan.locators, []
        for file in self.plan.needs.few(package):
            left = users[file] = users[file] - 1
            if not left:
                gone.append(locators[file])
        return gone

    def find(self, locator: str) -> int | None:
        """The number of a file, by its locator."""
        if self._hashes is None or self._numbers is None:
            hashes = np.fromiter(map(hash, self.plan.locators), np.int64, self.plan.count)
            self._numbers = np.argsort(hashes, kind="stable").astype(np.int32)
            self._hashes = hashes[self._numbers]
        wanted = hash(locator)
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            number = int(self._numbers[at])
            if self.plan.locators[number] == locator:
                return number
            at += 1
        return None


DEFAULT_WISH = int(Wish.RETAIN_TEMPORARILY)
"""How long a file is kept of which no job says otherwise."""
