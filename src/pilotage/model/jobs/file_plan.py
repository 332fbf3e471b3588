"""What packages do with files beyond the job's own tree: what they bring to their site, store, dispose of and release.

A plan of files follows from the definition and its lists, as the plan of the job does, and grows with it. Files are
numbered; many packages may need one file, and a million packages a file each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.model.jobs.graph import Rows


class Wish(IntEnum):
    """How long a cached file is to be kept; the greatest wish of all jobs that touch it holds."""

    DELETABLE = 0  # may go when no package needs it
    RETAIN_TEMPORARILY = 1  # may go when space is needed
    RETAIN_INDEFINITELY = 2  # stays until its owner releases it


class RetainedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output that is kept in the cache of the site where it was made."""

    locator: str
    size_bytes: int
    sha256: str
    wish: Wish


class FilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a job that are brought to sites before its packages start there, by number."""

    needs: Rows  # package → the files that must be at its site
    users: Rows  # file → the packages that need it
    locators: Sequence[str]  # by file
    sizes_bytes: NDArray[np.int64]  # by file, as far as the document says; 0: unknown
    wishes: NDArray[np.uint8]  # by file: `Wish`
    released: NDArray[np.bool_]  # by file: the job releases it when a package that needs it is done
    software: NDArray[np.bool_] | None = None  # by file: it is an archive of software; none: no file is
    present: NDArray[np.bool_] | None = None  # by file: it must be at the site already; none: all are brought
    checksums: Sequence[str] | None = None  # by file: the sha256 that the document requires; none: no file has one
    platforms: Mapping[int, tuple[str, ...]] = {}  # file → the only platforms that need it; an empty one: unknown ones

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.locators)

    def needed(self, package: int, *, platform: str) -> Sequence[int]:
        """The files that a package needs at a site of this platform, or of an unknown one, which is empty."""
        files = self.needs.few(package)
        if not self.platforms:
            return files
        return [file for file in files if platform in self.platforms.get(file, (platform,))]
