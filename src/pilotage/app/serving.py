"""The service that runs jobs, put together: its files, what was made before, the sites, and the engine among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pilotage.adapters.settings_files import state_folder
from pilotage.app.book import serve_settings
from pilotage.model.configuration import EngineSection, Settings
from pilotage.model.demand import Capacity
from pilotage.model.site import Site
from pilotage.model.version import VERSION

if TYPE_CHECKING:
    from pilotage.book.codec import Codec
    from pilotage.engine.settings import EngineSettings
    from pilotage.model.submission import RunPlan, Submission
    from pilotage.ports import Clock, Journal
    from pilotage.service.announcement import Announcement
    from pilotage.service.http.running import Running
    from pilotage.service.http.services import MakeRunning
    from pilotage.service.writer import Writer

LOOK_SECONDS = 0.5
"""How often the service looks which agents of this computer live: it costs next to nothing."""
PATIENCE = EngineSection()
LOCAL = "local"
"""What the computer that the service runs on is called among the sites."""


def serve_jobs(
    settings: Settings,
    *,
    started: Callable[[Announcement], None],
    slots: int | None = None,
    idle_seconds: float | None = None,
) -> int | None:
    """Serve the book and run jobs until a signal comes, which is returned.

    `slots` is how many packages run here at once: as many as there are cores, where nobody says. After `idle_seconds`
    with nothing to run and nobody who asks it ends by itself.
    """
    folder = state_folder(settings, folder=Path.cwd()).absolute()
    site = local_site(slots if slots is not None else cores_here(), folder)
    make_running = running_over(folder, site, patience=settings.engine)
    return serve_settings(settings, started=started, make_running=make_running, idle_seconds=idle_seconds)


def running_over(folder: Path, site: Site, *, patience: EngineSection = PATIENCE) -> MakeRunning:
    """What makes the running part of a service whose state is in a folder, with this computer as its one site."""

    def make(journal: Journal, *, writer: Writer, codec: Codec, clock: Clock) -> Running:
        from pilotage.adapters.local_token import token_file
        from pilotage.adapters.sites.local import LocalSettings, LocalSite
        from pilotage.adapters.sites.zipapp import build
        from pilotage.adapters.stores.folder import FolderStore
        from pilotage.adapters.work_index import SqliteWorkIndex
        from pilotage.service.announcement import SERVICE_FILE
        from pilotage.service.http.running import Running
        from pilotage.service.running.planning import plan
        from pilotage.service.running.runner import Runner
        from pilotage.service.server import SOCKET_FILE

        index = SqliteWorkIndex(folder)
        store = FolderStore(folder, index)
        access = LocalSite(
            LocalSettings(
                site=site.name,
                state=folder,
                agent=build(folder / f"agent-{VERSION}.pyz"),
                server=f"unix:{folder / SOCKET_FILE}",
                announcement=folder / SERVICE_FILE,
                token_file=token_file(folder),
                capacity=site.capacity,
                idle_seconds=patience.agent_idle_seconds,
            )
        )
        runner = Runner(
            journal=journal,
            writer=writer,
            clock=clock,
            codec=codec,
            sites=[site],
            accesses={site.name: access},
            store=store,
            index=index,
            settings=engine_settings(patience),
            poll_seconds=LOOK_SECONDS,
        )

        def planned(submission: Submission) -> RunPlan:
            slots = max(1, site.capacity.cores_hundredths // 100)
            return plan(submission, store=store, index=index, slots=slots)

        return Running(runner, journal=journal, plan=planned)

    return make


def engine_settings(patience: EngineSection) -> EngineSettings:
    """What the engine is told of the settings; all the rest is as it thinks best."""
    from pilotage.engine.restart import RestartSettings
    from pilotage.engine.settings import EngineSettings

    restart = RestartSettings(
        attempts_max=patience.attempts_max,
        pilot_kills_max=patience.pilot_kills_max,
        delay_seconds=patience.delay_seconds,
    )
    return EngineSettings(
        interval_seconds=patience.interval_seconds,
        lease_intervals=patience.lease_intervals,
        dead_start_seconds=patience.dead_start_seconds,
        restart=restart,
    )


def local_site(slots: int, folder: Path) -> Site:
    """The computer that we are on as a site, with so many slots, all of its memory, and the room where it keeps its state."""
    capacity = Capacity(cores_hundredths=100 * slots, memory_bytes=memory_here(), scratch_bytes=scratch_here(folder))
    return Site(name=LOCAL, kind="local", capacity=capacity, pilots_max=1)


def cores_here() -> int:
    """How many cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def memory_here() -> int:
    """How much memory this computer has, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def scratch_here(folder: Path) -> int:
    """How much room there is for the folders of packages, in bytes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
