"""Watches the file of sites every few seconds, and changes the sites of the running service.

A file that cannot be read changes nothing: the sites stay as they were, and the fault is in the log and in the list of
sites. A fault that may pass, such as a full disk, is retried at each check. A site that is gone starts nothing new, and
its pilots are told to leave.
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
from pilotage.reading.views import SitesConfiguration
from pilotage.service.errors import NotRunning
from pilotage.service.messages import Input, SiteOperationRequest, SitesChanged
from pilotage.service.sites.agent_worker import AgentSettings
from pilotage.service.sites.pool import SiteConnection

log = logging.getLogger(__name__)

LOOK_SECONDS = 3.0


class ConfiguredSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site, its entry, and what makes an access to it."""

    site: Site
    entry: SiteEntry | None = None  # None: this computer, without an entry
    make: Callable[[], SiteConnection]

    def has_same_access(self, other: ConfiguredSite | None) -> bool:
        """Whether the access made for another still fits."""
        return other is not None and (self.site, self.entry) == (other.site, other.entry)

    def starts_different_pilots(self, before: ConfiguredSite | None) -> bool:
        """Whether pilots started now differ from earlier ones."""
        if before is None or before.entry is None or self.entry is None:
            return False
        return starts_others(before.entry, self.entry)

    def changes_batch_system(self, before: ConfiguredSite | None) -> bool:
        """Whether earlier batch jobs are at a batch system that the new entry no longer names.

        A site agent does not count: it knows where it submitted.
        """
        if before is None or before.entry is None or self.entry is None:
            return False
        return before.entry.started_by == "service" and is_elsewhere(before.entry, self.entry)


class SitesSource(Protocol):
    """Reads the file of sites."""

    @property
    def file(self) -> str:
        """Its path, whether it exists or not."""
        ...

    def changed(self) -> Sequence[ConfiguredSite] | None:
        """All sites, if anything changed since the last call; else None.

        Raises `DocumentError` for a fault of the file, once per change; after any other error, the next call tries
        again.
        """
        ...


class SitesUser(Protocol):
    """Runs jobs at the sites."""

    def change_sites(
        self,
        sites: Sequence[Site],
        connections: Mapping[str, SiteConnection],
        *,
        renewed: Collection[str] = (),
        formers: Mapping[str, SiteConnection] | None = None,
    ) -> None:
        """Set the sites; earlier pilots of `renewed` sites are drained.

        `formers` are accesses to the former batch systems of some of them.
        """
        ...

    def release_sites(self) -> None:
        """Stop the workers of sites that are gone, once nothing is left there."""
        ...


class CannotReach(PilotageError):
    """The access to a site cannot be made from its entry, or on this computer."""


def connect_sites(configured: Iterable[ConfiguredSite]) -> dict[str, SiteConnection]:
    """An access to each site, by name; if one cannot be made, the others are closed. Raises `PilotageError`."""
    connections: dict[str, SiteConnection] = {}
    with contextlib.ExitStack() as undone:
        for each in configured:
            try:
                connection = connections[each.site.name] = each.make()
            except (OSError, ValueError) as fault:
                raise CannotReach(f"it cannot be accessed: {fault}", subject=f"site {each.site.name}") from fault
            if not isinstance(connection, AgentSettings):  # nothing is opened yet
                undone.callback(connection.close)
        undone.pop_all()
    return connections


class SitesFileWatcher:
    """A thread that watches the file, and changes the sites."""

    def __init__(
        self,
        reader: SitesSource,
        runner: SitesUser,
        *,
        configured: Sequence[ConfiguredSite],
        look_seconds: float = LOOK_SECONDS,
        besides: Callable[[], None] | None = None,
    ) -> None:
        """Take the present sites; nothing runs before `start`. `besides` is called at each check, too."""
        self._reader = reader
        self._runner = runner
        self._configured = {each.site.name: each for each in configured}
        self._pending: Sequence[ConfiguredSite] | None = None  # read, but not applied yet
        self._is_faulty = False  # the content of the file when last read
        self._fault = ""
        self._look_seconds = look_seconds
        self._besides = besides
        self._stopping = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; the sites stay as they are."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def known(self) -> SitesConfiguration:
        """The configured sites."""
        entries = {name: each.entry for name, each in self._configured.items()}
        return SitesConfiguration(file=self._reader.file, entries=entries, fault=self._fault)

    def look(self) -> None:
        """Check once and apply changes; any thread may call it, one at a time."""
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
        """Apply the file; what fails is tried again at the next check, unless the file changes."""
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
        """Report a fault, to the log only once; whether it is new."""
        is_new, self._fault = fault != self._fault, fault
        if is_new:
            log.warning("the sites stay as they were: %s", fault)
        return is_new

    def _change(self, found: Sequence[ConfiguredSite]) -> None:
        connections = connect_sites(
            each for each in found if not each.has_same_access(self._configured.get(each.site.name))
        )
        gone = sorted(self._configured.keys() - {each.site.name for each in found})
        if not connections and not gone:
            return
        renewed = [
            each.site.name for each in found if each.starts_different_pilots(self._configured.get(each.site.name))
        ]
        formers = connect_sites(
            self._configured[each.site.name]
            for each in found
            if each.changes_batch_system(self._configured.get(each.site.name))
        )
        self._runner.change_sites([each.site for each in found], connections, renewed=renewed, formers=formers)
        self._configured = {each.site.name: each for each in found}
        changes = [
            f"{word} {', '.join(names)}"
            for word, names in (("new or changed:", sorted(connections)), ("gone:", gone))
            if names
        ]
        log.warning("the sites have changed: %s", "; ".join(changes))

    def _run(self) -> None:
        while not self._stopping.wait(self._look_seconds):
            try:
                self.look()
            except NotRunning:
                return
            except Exception:  # an unexpected error must not end the watching
                log.exception("the file of sites could not be checked")


# Messages to the engine about sites, each kind in one place.


def sites_changed(sites: Sequence[Site], *, rewritten: Iterable[str] = (), renewed: Iterable[str] = ()) -> Input:
    """The message that sets the sites: which were `rewritten`, and which are `renewed`."""
    return SitesChanged(sites=tuple(sites), rewritten=tuple(rewritten), renewed=tuple(renewed))


def site_operation(deed: SiteDeed, site: str, *, message: str = "") -> Callable[[int], Input]:
    """A function that makes, from a token, the message of a site operation."""
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
    return lambda token: SiteOperationRequest(token=token, operation=operation)
