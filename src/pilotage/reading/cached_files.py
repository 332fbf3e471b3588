"""Questions about cached files on behalf of a principal: which there are, who needs them, and when they may go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import unquote

from pilotage.book.fold.cached_files import CachedFile, read_cached_file
from pilotage.book.query import CursorError
from pilotage.model.answers import FileNeed
from pilotage.ports import Journal
from pilotage.reading.access import ANY_OWNER, SITES, Principal
from pilotage.reading.views import View

WISH_NAMES = ("deletable", "retain-temporarily", "retain-indefinitely")
ROWS_AT_ONCE = 1000
_DIGEST_LENGTH = 64

FileGoes = Literal[
    "after-its-need", "when-space-is-needed", "when-released", "when-unpinned", "when-purged", "on-its-way", "now"
]


class CachedFileView(View, frozen=True, kw_only=True):
    """A file in the cache of a site, on its way there, or on its way out; `wishes` say who keeps it how long."""

    site: str
    locator: str
    state: str
    size_bytes: int
    sha256: str
    wish: str
    wishes: dict[str, str]
    pins: tuple[str, ...]
    software: bool
    stale: bool
    since: float
    used_at: float
    failures: int
    reason: str
    message: str


class CachedFilesPage(View, frozen=True, kw_only=True):
    """Cached files, and the cursor of the next page if there may be more."""

    files: list[CachedFileView]
    next: str | None


class CachedFileReason(View, frozen=True, kw_only=True):
    """Why a cached file is kept: the jobs that need it, as far as a service runs, and when it may go."""

    file: CachedFileView
    needs: tuple[FileNeed, ...] | None
    others: int  # jobs that need it, too, and that you may not read
    goes: FileGoes
    message: str


class CachedFileReasons(View, frozen=True, kw_only=True):
    """Why cached files are kept; `more` if only the first ones are shown."""

    files: list[CachedFileReason]
    more: bool


def cached_file_view(file: CachedFile) -> CachedFileView:
    """A cached file as people see it."""
    return CachedFileView(
        site=file.site,
        locator=file.locator,
        state=file.state,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        wish=WISH_NAMES[max(file.wishes.values(), default=0)],
        wishes={owner: WISH_NAMES[wish] for owner, wish in sorted(file.wishes.items())},
        pins=file.pins,
        software=file.software,
        stale=file.stale,
        since=file.since,
        used_at=file.used_at,
        failures=file.failures,
        reason=file.reason,
        message=file.message,
    )


def is_theirs(principal: Principal, file: CachedFile) -> bool:
    """Whether a principal may see a file whatever jobs need it now: they asked for it, or see everything."""
    if principal.is_bound:
        return False
    sees_all = ANY_OWNER in principal.scopes or SITES in principal.scopes
    return sees_all or principal.user in file.wishes or principal.user in file.pins


def matches(file: CachedFile, pattern: str) -> bool:
    """Whether a pattern is the locator of a file, or its last part, or fits one of them as in a shell."""
    locator = file.locator
    name = unquote(locator.rstrip("/").rpartition("/")[2])
    return pattern in (locator, name) or fnmatchcase(locator, pattern) or fnmatchcase(name, pattern)


def cached_files(
    journal: Journal, sites: Sequence[str], *, after: str | None, wanted: Callable[[CachedFile], bool], rows_max: int
) -> tuple[list[CachedFile], str | None]:
    """The wanted files among the next rows of some sites, in the order of the book, and the cursor of what follows."""
    found: list[CachedFile] = []
    left = rows_max
    for site, digest in _places(sites, after):
        last = digest
        while True:
            asked = min(left, ROWS_AT_ONCE)
            rows = journal.cached_files(site, after=last, limit=asked)
            files = map(read_cached_file, rows)
            found += [file for file in files if file.state not in ("", "removed") and wanted(file)]
            last, left = rows[-1].digest if rows else last, left - len(rows)
            if len(rows) < asked:
                break
            if left <= 0:
                return found, f"{site}/{last}"
    return found, None


def all_cached_files(
    journal: Journal, sites: Sequence[str], *, wanted: Callable[[CachedFile], bool]
) -> Iterator[CachedFile]:
    """All wanted files of some sites."""
    cursor: str | None = None
    while True:
        files, cursor = cached_files(journal, sites, after=cursor, wanted=wanted, rows_max=ROWS_AT_ONCE)
        yield from files
        if cursor is None:
            return


def _places(sites: Sequence[str], after: str | None) -> list[tuple[str, str]]:
    """The sites that are left, each with the last digest that was read there."""
    if after is None:
        return [(site, "") for site in sites]
    name, _, digest = after.rpartition("/")
    if name not in sites or len(digest) != _DIGEST_LENGTH:
        raise CursorError("no such cursor", got=after[:200], next_step="begin with the first page")
    at = sites.index(name)
    return [(name, digest), *((site, "") for site in sites[at + 1 :])]


def reason_of(
    file: CachedFile, needs: tuple[FileNeed, ...] | None, *, others: int, cache_bytes: int | None
) -> CachedFileReason:
    """Why a file is kept, and when it may go."""
    goes, message = _goes(file, needs or (), others, cache_bytes)
    if needs is None:
        message = f"{message}; no service runs, so who needs it now is not known"
    return CachedFileReason(file=cached_file_view(file), needs=needs, others=others, goes=goes, message=message)


def _goes(file: CachedFile, needs: Sequence[FileNeed], others: int, cache_bytes: int | None) -> tuple[FileGoes, str]:
    if file.state == "removing":
        return "now", "it is being removed"
    if file.state == "wished":
        owners = ", ".join(sorted(file.wishes))
        return "on-its-way", f"it is to be kept for {owners}, and comes as soon as the cache has space for it"
    if file.state == "ordered":
        return "on-its-way", f"it is on its way; then {_then(file, cache_bytes)[1]}"
    if file.state == "failed":
        words = f": {file.message}" if file.message else ""
        return "on-its-way", f"it could not be fetched ({file.reason}){words}"
    goes, message = _then(file, cache_bytes)
    if not needs and not others:
        return goes, message
    count = sum(need.packages for need in needs)
    named = f"{count:,} package{'' if count == 1 else 's'} that may still run" if count else "a job of somebody else"
    more = f" and {others} other job{'' if others == 1 else 's'}" if count and others else ""
    return "after-its-need", f"it stays as long as {named}{more} may read it; then {message}"


def _then(file: CachedFile, cache_bytes: int | None) -> tuple[FileGoes, str]:
    """When a file may go that no package needs."""
    if file.pins:
        return "when-unpinned", f"it stays until {', '.join(file.pins)} unpins it"
    if file.stale:
        return "now", "it goes at once: its store has another content now"
    wish = max(file.wishes.values(), default=0)
    owners = ", ".join(sorted(owner for owner, each in file.wishes.items() if each == wish))
    if wish == 0:
        return "now", "it goes at once: nobody wants to keep it"
    if wish == len(WISH_NAMES) - 1:
        return "when-released", f"it stays until a job of {owners} releases it, or it is purged"
    if cache_bytes is None:
        return (
            "when-purged",
            f"it stays ({owners}: retain-temporarily) until it is purged: the cache of {file.site} has no limit",
        )
    return (
        "when-space-is-needed",
        f"it goes when space is needed ({owners}: retain-temporarily), the least recently used files first",
    )
