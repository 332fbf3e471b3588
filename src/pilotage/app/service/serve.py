"""Puts together the service that runs jobs: its files, the index of results, the sites, and the engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pilotage.adapters.settings.settings_files import state_folder
from pilotage.app.service.serve_book import serve_settings
from pilotage.app.sites.entries import LOCAL
from pilotage.model.resources import AMOUNT_UNKNOWN, BESIDES_CORES, Capacity
from pilotage.model.settings.settings import EngineSection, Settings
from pilotage.model.site import LOCAL_DATA_HANDLING, Site, executors_of

if TYPE_CHECKING:
    from pilotage.book.codec import Codec
    from pilotage.model.exchange.operations import Refused
    from pilotage.model.jobs.plan import JobPlan
    from pilotage.model.jobs.submission import RunPlan, Submission
    from pilotage.model.settings.engine import EngineSettings
    from pilotage.model.sites.entry import SiteEntry
    from pilotage.ports import Clock, Journal, SiteAccess
    from pilotage.service.announcement import Announcement
    from pilotage.service.http.backend import JobBackend
    from pilotage.service.http.services import MakeBackend
    from pilotage.service.jobs.runner import Runner
    from pilotage.service.journal.writer import Writer
    from pilotage.service.sites.config_watch import ConfiguredSite
    from pilotage.service.transfers.transfers import SiteCache


TRANSFERS_FOLDER = "transfers"
"""In the state folder: files on their way to sites that are reached over sftp."""


def serve_jobs(
    settings: Settings,
    *,
    started: Callable[[Announcement], None],
    slots: int | None = None,
    idle_seconds: float | None = None,
    entries: Sequence[SiteEntry] | None = None,
    other_ports: Sequence[int] = (),
) -> int | None:
    """Serve the book and run jobs until a signal comes, and return the signal.

    `slots` is how many packages run here at once: by default the number of cores; with 0, nothing runs here. `entries`
    are the other sites; None: those of the file of sites, which is watched. After `idle_seconds` without jobs and
    requests it stops by itself. `other_ports` are tried if the one of the settings is taken.
    """
    from pilotage.app.sites.dialects import add_dialects
    from pilotage.app.sites.entries import file_here, refuse_missing

    folder = state_folder(settings, folder=Path.cwd()).absolute()
    add_dialects(folder)
    if settings.service.sites and entries is None:
        refuse_missing(file_here(settings))
    make_backend = backend_for(folder, settings=settings, slots=slots, entries=entries)
    return serve_settings(
        settings, started=started, make_backend=make_backend, idle_seconds=idle_seconds, other_ports=other_ports
    )


def backend_for(
    folder: Path, *, settings: Settings, slots: int | None = None, entries: Sequence[SiteEntry] | None = None
) -> MakeBackend:
    """Makes the running part of a service whose state is in a folder, with this computer and others as sites."""

    def make(journal: Journal, *, writer: Writer, codec: Codec, clock: Clock) -> JobBackend:
        from pilotage.adapters.stores.content_store import FolderContent
        from pilotage.adapters.stores.kept_content import KeptContent
        from pilotage.app.job_stores import open_job_stores
        from pilotage.app.service.credentials import tokens_of
        from pilotage.app.sites.caches import cache_of
        from pilotage.app.sites.connections import FixedSites, SitesReader, configured_sites, slots_of
        from pilotage.app.sites.entries import file_here
        from pilotage.app.store_registry import StoreRegistry, known_stores
        from pilotage.engine.inbound.admission import consider
        from pilotage.service.http.backend import JobBackend
        from pilotage.service.jobs.output_claims import GrantedFiles
        from pilotage.service.jobs.preview import plan
        from pilotage.service.jobs.resubmission import folder_of, unfinished_besides
        from pilotage.service.jobs.runner import Runner
        from pilotage.service.sites.config_watch import SitesFileWatcher, connect_sites
        from pilotage.service.sites.pool import split_connections
        from pilotage.service.transfers.leftover_copies import OwnCopies
        from pilotage.service.transfers.transfers import Transfers
        from pilotage.service.works.job_files import JobFiles

        tokens = tokens_of(folder, settings)
        # Once for each entry: free disk space changes all the time, and the site would change with it.
        here = cache(
            partial(this_computer, folder=folder, slots=slots, idle_seconds=settings.engine.agent_idle_seconds)
        )
        arrange = partial(configured_sites, here=here, state=folder, settings=settings, tokens=tokens)
        reader = (
            SitesReader(partial(file_here, settings, folder=Path.cwd()), arrange)
            if entries is None
            else FixedSites(arrange(entries))
        )
        configured = reader.changed() or ()
        content = FolderContent(folder)
        known = known_stores(
            settings, may_read=lambda sha256, user: content.is_held(sha256, by=user), find_job=journal.job
        )
        stores = open_job_stores(folder, learning=lambda index: GrantedFiles(journal, index).learn)
        job_files = JobFiles(journal, stores.tree, folder_of=partial(folder_of, journal))
        accesses, agent_sites = split_connections(connect_sites(configured))

        def site_cache(site: str) -> SiteCache | None:
            return cache_of(site, watcher.known.entries, state=folder)

        runner = Runner(
            journal=journal,
            writer=writer,
            clock=clock,
            codec=codec,
            sites=[each.site for each in configured],
            accesses=accesses,
            agent_sites=agent_sites,
            tree=stores.tree,
            index=stores.index,
            logs=stores.logs,
            settings=engine_settings(settings),
            package_token=tokens.for_package,
            variables=settings.provenance.variables,
            make_transfers=partial(
                Transfers,
                StoreRegistry(
                    settings.stores,
                    archive=settings.files.archive,
                    own={"store": lambda user: KeptContent(content, user=user), "job": lambda _: job_files},
                ),
                caches=site_cache,
                spool=str(folder / TRANSFERS_FOLDER),
                settings=settings.files,
                own_copies=OwnCopies(stores.put_copies),
            ),
            visible_seconds=settings.files.visible_seconds,
            known_stores=known,
        )
        watcher = SitesFileWatcher(reader, runner, configured=configured, besides=_probing(runner, settings.engine))

        runner.look_at_sites = watcher.look

        def planned(submission: Submission) -> RunPlan:
            watcher.look()

            def admission(made: JobPlan) -> Refused | tuple[str, ...]:
                owner = submission.owner
                unfinished = unfinished_besides(journal, submission, owner=owner)
                return runner.ask(
                    lambda engine: consider(engine.state, made, owner=owner, unfinished=unfinished)
                ).result()

            slots, executors = slots_of(runner.sites), executors_of(runner.sites)
            return plan(
                submission,
                tree=stores.tree,
                index=stores.index,
                admission=admission,
                now=clock.now(),
                executors=executors,
                stores=known,
                slots=slots,
                contents=runner.site_files.contents,
            )

        return JobBackend(runner, journal=journal, plan=planned, sites=watcher, content=content)

    return make


def this_computer(
    entry: SiteEntry | None, *, folder: Path, slots: int | None, idle_seconds: float
) -> ConfiguredSite | None:
    """The local computer as a site: the given number of slots, else as its entry says, else one for each core.

    Everything else is as its entry says, or as detected; it has one pilot, whatever the entry says.
    """
    from pilotage.app.sites.connections import with_own_name
    from pilotage.model.sites.entry import site_of
    from pilotage.service.sites.config_watch import ConfiguredSite

    if slots == 0:
        return None
    chosen = slots if slots is not None else entry.slots if entry is not None else cores_here()
    site = local_site(chosen, folder)
    if entry is not None:
        amounts = ((kind, getattr(entry, kind.entry)) for kind in BESIDES_CORES)
        known = {kind.name: kind.amount(amount) for kind, amount in amounts if amount is not None}
        capacity = msgspec.structs.replace(site.capacity, **known)
        scratch = site.scratch_bytes if entry.scratch_bytes is None else entry.scratch_bytes
        site = msgspec.structs.replace(site_of(entry), capacity=capacity, pilots_max=1, scratch_bytes=scratch)
        if entry.idle_seconds != type(entry)(name="", kind="").idle_seconds:
            idle_seconds = entry.idle_seconds
    site = with_own_name(site)
    return ConfiguredSite(site=site, entry=entry, make=partial(_local_access, site, folder, idle_seconds))


def _local_access(site: Site, folder: Path, idle_seconds: float) -> SiteAccess:
    from pilotage.adapters.settings.tokens import token_file
    from pilotage.adapters.sites.local import LocalSettings, LocalSite
    from pilotage.adapters.sites.zipapp import build_in
    from pilotage.service.announcement import SERVICE_FILE
    from pilotage.service.server import SOCKET_FILE

    return LocalSite(
        LocalSettings(
            site=site.name,
            state=folder,
            agent=build_in(folder),
            server=f"unix:{folder / SOCKET_FILE}",
            announcement=folder / SERVICE_FILE,
            token_file=token_file(folder),
            capacity=site.capacity,
            idle_seconds=idle_seconds,
            wall_seconds=site.wall_seconds,
        )
    )


def _probing(runner: Runner, patience: EngineSection) -> Callable[[], None]:
    """A function that probes sites regularly, as far as the settings ask for it."""
    from pilotage.service.sites.pool import Prober, probes_under_way, sites_to_probe

    def probe(site: str) -> None:
        runner.operate_site("probe", site).result()

    prober = Prober(probe, at_once=patience.probes, every_seconds=patience.probe_seconds, clock=time.monotonic)

    def look() -> None:
        if patience.probes:
            prober.look(runner.ask(sites_to_probe).result(), under_way=runner.ask(probes_under_way).result())

    return look


def engine_settings(settings: Settings) -> EngineSettings:
    """The settings of the engine; the rest are its defaults."""
    from pilotage.model.settings.engine import EngineSettings, RestartSettings

    patience = settings.engine
    restart = RestartSettings(
        attempts_max=patience.attempts_max,
        pilot_kills_max=patience.pilot_kills_max,
        delay_seconds=patience.delay_seconds,
    )
    return EngineSettings(
        interval_seconds=patience.interval_seconds,
        lease_intervals=patience.lease_intervals,
        dead_start_seconds=patience.dead_start_seconds,
        dead_starts_max=patience.dead_starts_max,
        probe_timeout_seconds=patience.probe_timeout_seconds,
        skew_seconds=settings.book.skew_seconds,
        fairness=patience.fairness,
        provisioning=patience.provisioning,
        provisioning_within=patience.provisioning_within,
        healing=patience.healing,
        waiting_seconds_max=patience.waiting_seconds_max,
        owner_running_max=patience.owner_running_max,
        owner_packages_max=patience.owner_packages_max,
        group_packages_max=patience.group_packages_max,
        flood_packages=patience.flood_packages,
        fetch_attempts_max=patience.fetch_attempts_max,
        fetch_delay_seconds=patience.fetch_delay_seconds,
        restart=restart,
        selection=settings.selection,
        incidents=settings.healing,
    )


def local_site(slots: int, folder: Path) -> Site:
    """The local computer as a site, with so many slots, all its memory, and the free space of its state folder."""
    # Free space changes all the time: as part of the capacity it would make every pilot belong to a different site.
    capacity = Capacity(cores_hundredths=100 * slots, memory_bytes=memory_here(), scratch_bytes=AMOUNT_UNKNOWN)
    return Site(
        name=LOCAL,
        kind="local",
        capacity=capacity,
        pilots_max=1,
        data_handling=LOCAL_DATA_HANDLING,
        scratch_bytes=scratch_here(folder),
    )


def cores_here() -> int:
    """How many cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def memory_here() -> int:
    """The memory of this computer, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def scratch_here(folder: Path) -> int:
    """The free space for the folders of packages, in bytes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
