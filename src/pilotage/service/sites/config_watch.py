"""The sites of a running service, as their file says: looked at every few seconds, and changed when it does.

A file that cannot be read changes nothing: the sites stay as they were, and what is wrong is said in the log, and to
whoever asks for the sites. What may be over in a moment, such as a full disk, is tried again at each look. At a site that is gone nothing new is started; its pilots are told to leave.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.exchange.operations import AnySiteOperation, HibernateSite, ProbeSite, SiteDeed, TrySite, WakeSite
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry, is_elsewhere, starts_others
from pilotage.reading.views import KeptSites
from pilotage.service.errors import NotRunning
from pilotage.service.messages import AskedOfSite, Input, SitesChanged
from pilotage.service.sites.agent_worker import AgentSettings
from pilotage.service.sites.pool import Way

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A site, what was written of it, and what makes a way to it."""

    site: Site
    entry: SiteEntry | None = None  # None: this computer, as it is
    make: Callable[[], Way]

    def is_as(self, other: Placed | None) -> bool:
        """Whether the way that was made for another will do."""
        return other is not None and (self.site, self.entry) == (other.site, other.entry)

    def starts_others(self, before: Placed | None) -> bool:
        """Whether pilots that are started now are other than those of before."""
        if before is None or before.entry is None or self.entry is None:
            return False
        return starts_others(before.entry, self.entry)

    def leaves(self, before: Placed | None) -> bool:
        """Whether what was submitted before is at a batch system that nobody looks at any more.

        A site's own agent is left out: it knows what it submitted where.
        """
        if before is None or before.entry is None or self.entry is None:
            return False
        return before.entry.started_by == "service" and is_elsewhere(before.entry, self.entry)


class ReadsSites(Protocol):
    """Who knows the file of sites."""

    @property
    def file(self) -> str:
        """Its path, whether it is there or not."""
        ...

    def changed(self) -> Sequence[Placed] | None:
        """All sites, where anything has changed since they were last told.

        Raises `DocumentError` for a fault of the file, once for each change of it; all else that is raised is as if
        nobody had asked.
        """
        ...


class ChangesSites(Protocol):
    """Who runs jobs at the sites."""

    def change_sites(
        self,
        sites: Sequence[Site],
        ways: Mapping[str, Way],
        *,
        renewed: Collection[str] = (),
        formers: Mapping[str, Way] | None = None,
    ) -> None:
        """These are the sites from now on; what was started before is drained at those that are `renewed`.

        `formers` are ways to the batch systems of some of these as they were before.
        """
        ...

    def release_sites(self) -> None:
        """Nobody acts any longer at sites that are gone, and with them all that was started there."""
        ...


class CannotReach(PilotageError):
    """The way to a site cannot be made, as its entry or this computer is now."""


def ways_to(placed: Iterable[Placed]) -> dict[str, Way]:
    """A way to each site, by name; where one cannot be made, those before it are let go of. Raises `PilotageError`."""
    ways: dict[str, Way] = {}
    with contextlib.ExitStack() as undone:
        for each in placed:
            try:
                way = ways[each.site.name] = each.make()
            except (OSError, ValueError) as fault:
                raise CannotReach(f"the way to it cannot be made: {fault}", subject=f"site {each.site.name}") from fault
            if not isinstance(way, AgentSettings):  # through which nothing is opened yet
                undone.callback(way.close)
        undone.pop_all()
    return ways


class SitesFileWatcher:
    """A thread that looks at the file, and changes the sites."""

    def __init__(
        self,
        reader: ReadsSites,
        runner: ChangesSites,
        *,
        placed: Sequence[Placed],
        look_seconds: float = LOOK_SECONDS,
        besides: Callable[[], None] | None = None,
    ) -> None:
        """Take the sites as they are now; nothing runs before `start`. `besides` is done at each look, too."""
        self._reader = reader
        self._runner = runner
        self._placed = {each.site.name: each for each in placed}
        self._pending: Sequence[Placed] | None = None  # what was read, and is not yet so
        self._is_faulty = False  # the file itself, as it was last read
        self._fault = ""
        self._look_seconds = look_seconds
        self._besides = besides
        self._stopping = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End; the sites stay as they are."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def known(self) -> KeptSites:
        """The sites as they are kept."""
        entries = {name: each.entry for name, each in self._placed.items()}
        return KeptSites(file=self._reader.file, entries=entries, fault=self._fault)

    def look(self) -> None:
        """Look once, and do what follows from it; any thread may, one after the other."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        try:
            self._follow()
        except NotRunning:
            raise
        except PilotageError as fault:
            self._complain(str(fault))
        except (OSError, ValueError) as fault:
            self._complain(f"{type(fault).__name__}: {fault}")
        except Exception as fault:
            if self._complain(f"{type(fault).__name__}: {fault}"):
                log.exception("the sites could not be changed")
        self._runner.release_sites()
        if self._besides is not None:
            self._besides()

    def _follow(self) -> None:
        """Do what the file says; what could not be done is still to do at the next look, unless the file says another thing."""
        try:
            found = self._reader.changed()
        except DocumentError:
            self._pending, self._is_faulty = None, True
            raise
        if found is not None:
            self._pending, self._is_faulty = found, False
        if self._pending is not None:
            self._change(self._pending)
            self._pending = None
        if not self._is_faulty:
            self._fault = ""

    def _complain(self, fault: str) -> bool:
        """Say what is wrong, in the log once; whether it is new."""
        is_new, self._fault = fault != self._fault, fault
        if is_new:
            log.warning("the sites stay as they were: %s", fault)
        return is_new

    def _change(self, found: Sequence[Placed]) -> None:
        ways = ways_to(each for each in found if not each.is_as(self._placed.get(each.site.name)))
        gone = sorted(self._placed.keys() - {each.site.name for each in found})
        if not ways and not gone:
            return
        renewed = [each.site.name for each in found if each.starts_others(self._placed.get(each.site.name))]
        formers = ways_to(
            self._placed[each.site.name] for each in found if each.leaves(self._placed.get(each.site.name))
        )
        self._runner.change_sites([each.site for each in found], ways, renewed=renewed, formers=formers)
        self._placed = {each.site.name: each for each in found}
        told = [
            f"{word} {', '.join(names)}"
            for word, names in (("new or changed:", sorted(ways)), ("gone:", gone))
            if names
        ]
        log.warning("the sites have changed: %s", "; ".join(told))

    def _run(self) -> None:
        while not self._stopping.wait(self._look_seconds):
            try:
                self.look()
            except NotRunning:
                return
            except Exception:  # one surprise must not end the looking for ever
                log.exception("the sites could not be looked at")


# What the engine is told of sites by people: each kind of message in one place.


def sites_changed(sites: Sequence[Site], *, rewritten: Iterable[str] = (), renewed: Iterable[str] = ()) -> Input:
    """What tells the core that these are the sites from now on, of which something is said anew, and which start others."""
    return SitesChanged(sites=tuple(sites), rewritten=tuple(rewritten), renewed=tuple(renewed))


def asked_of_site(deed: SiteDeed, site: str, *, message: str = "") -> Callable[[int], Input]:
    """What makes, of a token, the message that asks for something at a site."""
    operation: AnySiteOperation
    match deed:
        case "hibernate":
            operation = HibernateSite(site=site, message=message)
        case "wake":
            operation = WakeSite(site=site, message=message)
        case "probe":
            operation = ProbeSite(site=site)
        case "try":
            operation = TrySite(site=site)
    return lambda token: AskedOfSite(token=token, operation=operation)
