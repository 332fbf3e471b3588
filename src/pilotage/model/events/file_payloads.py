"""The payloads of events about files: the caches of sites, and the copies of outputs in stores.

One event tells of many files, since a site may get ten thousand of them in a moment.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pilotage.model.events.payloads import Amount, Count, Name, Part, Payload, ReasonName, Sha256, SiteName, Text
from pilotage.model.texts import check_sha256

FileName = Annotated[str, Meta(min_length=1, max_length=4096)]
Locator = Annotated[str, Meta(min_length=1, max_length=8192)]  # never with a password or a signature
WishName = Literal["deletable", "retain-temporarily", "retain-indefinitely"]
"""How long a cached file is to be kept, the least first."""
RemovalCause = Literal["deletable", "space", "purged", "stale"]
"""Why a cached file is removed: nobody wants it any more, space is needed, a person asked for it, or its store has another."""


class OrderedFetch(Part, frozen=True, kw_only=True):
    """A file to be brought to a site for a job; the key is that of the effect."""

    locator: Locator
    key: Name
    name: Annotated[str, Meta(max_length=256)] = ""  # in the cache folder of the site
    size_bytes: Count | None = None  # as far as is known before
    wish: WishName | None = None  # of the first job that needs it there
    owner: Annotated[str, Meta(max_length=256)] = ""  # of that job
    software: bool = False
    source: SiteName | None = None  # whose verified copy is brought, since the store does not give the file
    decision: Count = 0  # of healing, if it follows from one


class FetchesOrdered(Payload, frozen=True, kw_only=True):
    """Files are to be brought to the cache of a site."""

    files: Annotated[tuple[OrderedFetch, ...], Meta(max_length=100_000)]


class FetchedFile(Part, frozen=True, kw_only=True):
    """A file in the cache of a site, verified; `version` is what its store said of it."""

    locator: Locator
    key: Name
    size_bytes: Count
    sha256: Sha256
    version: Text = ""
    seconds: Amount = 0.0

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        check_sha256(self.sha256)


class FilesFetched(Payload, frozen=True, kw_only=True):
    """Files have arrived in the cache of a site."""

    files: Annotated[tuple[FetchedFile, ...], Meta(max_length=100_000)]


class FailedFetch(Part, frozen=True, kw_only=True):
    """A file that could not be brought to a site, and why."""

    locator: Locator
    key: Name
    reason: ReasonName
    message: Text = ""
    seconds: Amount = 0.0
    failures: Count = 1  # of this file there, in a row


class FetchesFailed(Payload, frozen=True, kw_only=True):
    """Files could not be brought to the cache of a site."""

    files: Annotated[tuple[FailedFetch, ...], Meta(max_length=100_000)]


class Retention(Part, frozen=True, kw_only=True):
    """How long a cached file is kept: a wish of a job, a release by its owner, or a pin of a person.

    A file that is wished and not there is to be brought.
    """

    locator: Locator
    size_bytes: Count | None = None  # of a file that is not there
    wish: WishName | None = None
    released: bool = False  # the wishes of this owner no longer hold
    pinned: bool | None = None
    stale: bool = False  # its store has another content now: it goes with the last package that needs it
    owner: Annotated[str, Meta(max_length=256)] = ""  # whose wish or pin it is
    job: Annotated[str, Meta(max_length=256)] = ""


class RetentionSet(Payload, frozen=True, kw_only=True):
    """How long cached files of a site are kept has changed."""

    files: Annotated[tuple[Retention, ...], Meta(max_length=100_000)]


class OrderedRemoval(Part, frozen=True, kw_only=True):
    """A cached file to be removed, and why."""

    locator: Locator
    key: Name
    cause: RemovalCause


class RemovalsOrdered(Payload, frozen=True, kw_only=True):
    """Files are to be removed from the cache of a site; no package needs them."""

    files: Annotated[tuple[OrderedRemoval, ...], Meta(max_length=100_000)]


class CachedFilesRemoved(Payload, frozen=True, kw_only=True):
    """Files are gone from the cache of a site."""

    locators: Annotated[tuple[Locator, ...], Meta(max_length=100_000)]


class StoredCopy(Part, frozen=True, kw_only=True):
    """A verified copy of an output in a store."""

    name: FileName
    locator: Locator
    size_bytes: Count
    sha256: Sha256
    instead_of: Annotated[str, Meta(max_length=8192)] = ""  # the locator in another store, which did not take it
    message: Text = ""  # why not

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        check_sha256(self.sha256)


class FailedCopy(Part, frozen=True, kw_only=True):
    """A copy of an output that could not be stored, and why."""

    name: FileName
    locator: Locator
    reason: ReasonName
    message: Text = ""


class OutputsStored(Payload, frozen=True, kw_only=True):
    """The outputs of an attempt were copied to stores and verified, before its grant; without failures all copies are there."""

    copies: Annotated[tuple[StoredCopy, ...], Meta(max_length=100_000)] = ()
    failed: Annotated[tuple[FailedCopy, ...], Meta(max_length=100_000)] = ()


class RemadeInput(Part, frozen=True, kw_only=True):
    """A file that a package read, and that its maker was granted again with another content."""

    name: FileName
    read_sha256: Sha256
    sha256: Sha256

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        check_sha256(self.read_sha256)
        check_sha256(self.sha256)


class InputsRemade(Payload, frozen=True, kw_only=True):
    """Inputs of a finished package were made again with other contents: its results are stale. Without files, no longer."""

    granted: Count  # the attempt that read them
    files: Annotated[tuple[RemadeInput, ...], Meta(max_length=100_000)] = ()


class OutputsDisposed(Payload, frozen=True, kw_only=True):
    """No package needs the deletable outputs of this attempt any more: they are removed, and still count as made."""
