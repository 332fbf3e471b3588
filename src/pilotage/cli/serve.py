"""`pilotage serve`: jobs are run and the book is kept, behind HTTP, until a signal ends it."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from pilotage.cli.numbers import import_numpy_quickly
from pilotage.cli.output import emit, say_to_reader
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.book_service import Announcement
    from pilotage.model.configuration import Settings


log = logging.getLogger(__name__)


@click.command()
@click.option("--book-only", is_flag=True, help="Keep and answer from the book, and run nothing.")
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    metavar="N",
    help="Packages that run here at once; none: the cores; 0: only at other sites.",
)
@click.option("--sites", metavar="FILE", help="The file of sites; none: sites.yaml here, or in your settings.")
@click.option("--journal", metavar="URL", help="Where the book is kept: sqlite:DIR or postgresql://…")
@click.option("--host", metavar="ADDRESS", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port to listen on; 0 takes any free one.")
@click.option("--background", is_flag=True, help="End when it answers, and let it go on without a terminal.")
@click.option(
    "--until-idle",
    "idle_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="End after so long with nothing to run and nobody who asks.",
)
@click.option(
    "--stop", is_flag=True, help="Stop the service of this folder, or of the nearest above it, in good order."
)
def serve(
    slots: int | None,
    sites: str | None,
    journal: str | None,
    host: str | None,
    port: int | None,
    idle_seconds: float | None,
    *,
    book_only: bool,
    background: bool,
    stop: bool,
) -> int:
    """Run the service: jobs of many, and the book over HTTP.

    Its address is said when it answers; commands in this folder and below find it by themselves. Ctrl-C or SIGTERM
    ends it in good order: what runs goes on, and is taken up again by the next one. With --book-only nothing is run,
    for programs that bring their own scheduler. What the options leave open is in the settings.
    """
    from pathlib import Path

    from pilotage.app import book, book_service

    flags = {"journal.url": journal, "service.host": host, "service.port": port, "service.sites": sites}
    settings = book.settings_here(flags)
    if stop:
        from pilotage.app.background import stop_service

        stopped = stop_service(settings, upward=journal is None)
        for told in (f"stopped {stopped.url}", *stopped.left):
            say_to_reader(told)
        return ExitCode.COMPLETE
    if book_only and not (slots is None and idle_seconds is None and sites is None):
        told = "--slots, --sites and --until-idle are for a service that runs jobs: leave --book-only out."
        raise click.UsageError(told)
    if background:
        from pilotage.app.background import start_in_background

        said = {"--slots": slots, "--sites": sites, "--host": host, "--port": port, "--until-idle": idle_seconds}
        options = [word for name, value in said.items() if value is not None for word in (name, str(value))]
        only = ["--book-only"] if book_only else []
        _tell(settings, start_in_background(settings, [*only, *options]))
        return ExitCode.COMPLETE
    from pilotage.cli.service_log import begin_log, logged, outlive_terminal

    outlive_terminal()
    to_file = begin_log(settings.service.log_level)
    others = book.other_ports(settings, folder=Path.cwd(), flags=flags)

    def started(announcement: Announcement) -> None:
        if to_file:
            log.info("serving %s at %s", settings.journal.address, announcement.url)
        else:
            _tell(settings, announcement)

    def run() -> int:
        if book_only:
            ended_by = book_service.serve_book(settings, started=started, other_ports=others)
        else:
            import_numpy_quickly()
            from pilotage.app.serving import serve_jobs

            ended_by = serve_jobs(settings, started=started, slots=slots, idle_seconds=idle_seconds, other_ports=others)
        if to_file:
            log.info("the service has ended%s", f" by {signal.Signals(ended_by).name}" if ended_by else "")
        return ExitCode.INTERRUPTED if ended_by == signal.SIGINT else ExitCode.COMPLETE

    return logged(run) if to_file else run()


def _tell(settings: Settings, announcement: Announcement) -> None:
    wanted, url = settings.service.port, announcement.url
    if wanted and not settings.service.address and urlsplit(url).port not in (None, wanted):
        say_to_reader(f"port {wanted} is taken by another program: a free one was chosen; choose one with --port N")
    emit([f"serving {settings.journal.address} at {url}\n"])
