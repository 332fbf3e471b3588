"""What earlier runs of a document made and it no longer makes: what is asked, and what comes back."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.submission import Submission

StaysFor = Literal["changed", "link", "unfinished-job", "document", "other-document", "parameters"]
"""Why a file stays: somebody changed it; a link leads to it; a job that is not over uses it; the document itself reads it;
another document uses it; the document makes it with other parameters."""


class CleanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `POST /v1/clean`: a document as it is now, and what is to be removed of what was shown."""

    submission: Submission
    read: tuple[str, ...] = ()  # files beside the document that it was read from
    remove: dict[str, str] = {}  # name → sha256, as they were shown; none: nothing is removed


class ObsoleteFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that an earlier run made and the document no longer makes."""

    name: str  # in the folder of the document
    size_bytes: int
    sha256: str
    modified_at: float
    job: str  # that made it, the last if several did


class StayingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that the document no longer makes, and that stays all the same."""

    name: str
    reason: StaysFor
    message: str  # in words


class NotRemoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was to be removed, and that the system did not let go of."""

    name: str
    message: str


class ObsoleteFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there was to remove, what stays and why, and what was removed."""

    job: str  # the short name
    folder: str
    files: tuple[ObsoleteFile, ...] = ()  # that can be removed, or just were
    kept: tuple[StayingFile, ...] = ()
    maybe_made: int = 0  # files that the document may make: of some outputs the names are not known before
    removed: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # that were left empty, and removed, too
    not_removed: tuple[NotRemoved, ...] = ()

    @property
    def size_bytes(self) -> int:
        """How large the files are together."""
        return sum(file.size_bytes for file in self.files)
