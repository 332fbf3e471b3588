"""The caches of sites: files that were brought there, files on their way, and the packages that wait for them.

Events determine the files; which packages wait for one follows from reservations, which no event carries.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256

import msgspec

from pilotage.engine.state.jobs import ActivePackage, JobState
from pilotage.model.events.file_payloads import FailedFetch, FetchedFile, WishName
from pilotage.model.jobs.file_plan import Wish
from pilotage.model.texts import changes_often

Wishes = tuple[tuple[str, int], ...]
"""The greatest wish of each owner, sorted by owner."""

WISH_NAMES: tuple[WishName, ...] = ("deletable", "retain-temporarily", "retain-indefinitely")
"""Names of the wishes, by number."""


class FileState:
    """State of a cached file. Plain numbers, for speed."""

    ORDERED = 1  # on its way
    PRESENT = 2
    FAILED = 3  # the last fetch failed
    REMOVING = 4


FILE_STATES = ("", "ordered", "present", "failed", "removing")
"""Names of the states, as in the book."""


@changes_often
class CachedFile(msgspec.Struct, kw_only=True, eq=False, gc=False):
    """A file in the cache of a site, or on its way there or out of it."""

    locator: str
    key: str  # of the last order to fetch or remove it
    name: str  # in the cache folder
    state: int = FileState.ORDERED
    size_bytes: int = 0  # of an ordered file as estimated; 0: unknown
    sha256: str = ""
    version: str = ""  # what its store said of it
    since: float = 0.0  # when it got its state, by the wall clock
    source: str = ""  # the site whose copy is brought; empty: its store
    wishes: Wishes = ()
    pins: tuple[str, ...] = ()  # of persons
    software: bool = False
    stale: bool = False  # its store has another content now

    @property
    def wish(self) -> int:
        """The greatest wish of all owners; a file that nobody wants is deletable."""
        return max((each for _, each in self.wishes), default=int(Wish.DELETABLE))

    @property
    def is_disposable(self) -> bool:
        """Whether it goes with the last package that needs it."""
        return not self.pins and (self.stale or not self.wish)

    @property
    def is_evictable(self) -> bool:
        """Whether it may go when space is needed and no package needs it."""
        return not self.pins and (self.stale or self.wish < Wish.RETAIN_INDEFINITELY)


def covers(wishes: Wishes, owner: str, wish: int) -> bool:
    """Whether an owner has such a wish already, or a greater one."""
    for other, known in wishes:
        if other == owner:
            return known >= wish
    return False


def is_output(locator: str) -> bool:
    """Whether a file is an output of a job of this service: it is brought for its wish alone."""
    return locator.startswith("job:")


def name_in_cache(locator: str, key: str) -> str:
    """The name of a file in the cache folder, with its subfolder: it never contains a user's text.

    It depends on the order: a file that is fetched again gets another name, so that no program sees two contents under one.
    """
    digest = sha256(f"{locator}\0{key}".encode()).hexdigest()
    return f"{digest[:2]}/{digest}"


class WishedFile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An output of a job that is to be kept in the cache of a site, and is not there yet."""

    size_bytes: int = 0  # 0: unknown
    wishes: Wishes = ()

    @property
    def wish(self) -> int:
        """The greatest wish of all owners; none: it need not come."""
        return max((each for _, each in self.wishes), default=-1)


class Fault(msgspec.Struct, kw_only=True, eq=False):
    """A file that could not be brought to a site."""

    failures: int = 0  # in a row
    reason: str = ""
    message: str = ""
    retry_at: float = 0.0  # in engine time
    given_up: bool = False  # packages that need it are held, until a person releases one
    held: dict[str, int] = {}  # job → packages of it that were held for it


class SiteCache:
    """The files of one site."""

    __slots__ = (
        "admitted",
        "arrived",
        "blocked_since",
        "by_key",
        "claimed",
        "claimed_bytes",
        "crowded",
        "entries",
        "faults",
        "gone",
        "idle",
        "line",
        "name",
        "not_fetched",
        "ordered_bytes",
        "removing_bytes",
        "to_bring",
        "to_check",
        "to_replace",
        "to_retain",
        "unsized",
        "used_bytes",
        "waiting",
        "wanted",
        "wished",
    )

    def __init__(self, name: str) -> None:
        """Start empty."""
        self.name = name
        self.entries: dict[str, CachedFile] = {}  # by locator
        self.by_key: dict[str, str] = {}  # open orders → locator
        self.used_bytes = 0  # of files there, also those being removed
        self.ordered_bytes = 0  # of files on their way, as far as is known
        self.unsized = 0  # files on their way whose size is not known
        self.removing_bytes = 0  # of those that are used
        self.faults: dict[str, Fault] = {}  # of failed fetches, by locator
        self.waiting: dict[str, dict[ActivePackage, None]] = {}  # missing file → the packages reserved here
        self.wanted: dict[
            str, tuple[JobState, int]
        ] = {}  # to be ordered → the first job that needs it, and its number there
        self.wished: dict[str, WishedFile] = {}  # outputs of jobs that are to be kept here, until they have come
        # Where space is limited: reserved packages that wait for it, in their order; those whose missing files all have
        # space; and these files, as far as they are not on their way. So no two packages wait for each other's space.
        self.line: dict[ActivePackage, None] = {}
        self.admitted: dict[ActivePackage, None] = {}
        self.claimed: dict[str, int] = {}
        self.claimed_bytes = 0
        self.blocked_since: float | None = None  # since when the first package in line waits, in engine time
        self.crowded: dict[str, int] = {}  # job → packages of it that were held since no space can come free
        self.idle: OrderedDict[str, None] = OrderedDict()  # files without a need: the longest first; checked when used
        # Left for the next decision.
        self.to_bring: dict[str, None] = {}  # those of the wished files that are neither there nor on their way
        self.to_check: dict[str, None] = {}  # files that may have to go
        self.to_replace: dict[str, None] = {}  # files there with another content than a waiting package requires
        self.to_retain: dict[tuple[str, str], int] = {}  # locator and owner → a wish that is not recorded yet
        self.arrived: list[FetchedFile] = []
        self.not_fetched: list[FailedFetch] = []
        self.gone: dict[str, None] = {}

    def claim(self, locator: str, size_bytes: int) -> None:
        """Keep space for a missing file of an admitted package."""
        if locator not in self.claimed:
            self.claimed[locator] = size_bytes
            self.claimed_bytes += size_bytes

    def unclaim(self, locator: str) -> None:
        """Keep no space for a file any more, if any was kept."""
        self.claimed_bytes -= self.claimed.pop(locator, 0)

    def has_admitted_waiter(self, locator: str) -> bool:
        """Whether an admitted package waits for a file."""
        return any(work in self.admitted for work in self.waiting.get(locator, ()))

    @property
    def taken_bytes(self) -> int:
        """Space of all files there and on their way."""
        return self.used_bytes + self.ordered_bytes


class FileTable:
    """The caches of all sites, and the packages that must be held or submitted because of files."""

    __slots__ = (
        "_known_wishes",
        "again",
        "caches",
        "jobs",
        "nodes",
        "to_dispose",
        "to_hold",
        "to_remake",
        "to_submit",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.caches: dict[str, SiteCache] = {}  # by site; also of removed sites
        self.jobs: dict[JobState, None] = {}  # with files
        self.to_hold: dict[ActivePackage, str] = {}  # reserved packages that cannot have their files → why
        self.to_submit: dict[
            ActivePackage, None
        ] = {}  # reserved packages of batch jobs of their own that have their files
        self.to_dispose: dict[tuple[JobState, int], None] = {}  # producers whose outputs may be of no use any more
        self.to_remake: dict[
            tuple[JobState, int], None
        ] = {}  # restarted packages, whose inputs may have been disposed of
        self.again = False  # reservations have changed: they may be used
        self.nodes: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()  # node or pilot → files that it used
        self._known_wishes: dict[Wishes, Wishes] = {}

    @property
    def pending(self) -> bool:
        """Whether another round of decisions is needed."""
        return bool(self.to_hold or self.to_submit or self.again or self.to_dispose or self.to_remake)

    def at(self, site: str) -> SiteCache:
        """The cache of a site."""
        found = self.caches.get(site)
        if found is None:
            found = self.caches[site] = SiteCache(site)
        return found

    def with_wish(self, wishes: Wishes, owner: str, wish: int) -> Wishes:
        """The wishes with that of an owner; equal ones are one object, since a million files may have the same."""
        return self.shared({**dict(wishes), owner: wish})

    def shared(self, wishes: dict[str, int]) -> Wishes:
        """The wishes as one shared object."""
        made = tuple(sorted(wishes.items()))
        return self._known_wishes.setdefault(made, made)
