"""`pilotage serve`: the book behind HTTP, until a signal ends it."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import click

from pilotage.cli.output import emit, say_to_reader
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.book import Announcement
    from pilotage.model.configuration import Settings


@click.command()
@click.option("--book-only", is_flag=True, help="Keep and answer from the book, and run nothing.")
@click.option("--journal", metavar="URL", help="Where the book is kept: sqlite:DIR or postgresql://…")
@click.option("--host", metavar="ADDRESS", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="The port to listen on; 0 takes any free one.")
@click.option("--background", is_flag=True, help="End when it answers, and let it go on without a terminal.")
@click.option(
    "--stop", is_flag=True, help="Stop the service of this folder, or of the nearest above it, in good order."
)
def serve(
    journal: str | None, host: str | None, port: int | None, *, book_only: bool, background: bool, stop: bool
) -> int:
    """Serve the book over HTTP, for programs that bring their own scheduler.

    Its address is said when it answers; commands in this folder and below find it by themselves. Ctrl-C or SIGTERM
    ends it in good order. What the options leave open is in the settings.
    """
    from pilotage.app import book

    settings = book.settings_here({"journal.url": journal, "service.host": host, "service.port": port})
    if stop:
        from pilotage.app.background import stop_service

        say_to_reader(f"stopped {stop_service(settings, upward=journal is None).url}")
        return ExitCode.COMPLETE
    if not book_only:
        raise click.UsageError("Only the book can be served today: say --book-only.")
    if background:
        from pilotage.app.background import start_in_background

        said = {"--host": host, "--port": port}
        options = [word for name, value in said.items() if value is not None for word in (name, str(value))]
        _tell(settings, start_in_background(settings, ["--book-only", *options]))
        return ExitCode.COMPLETE
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ended_by = book.serve_book(settings, started=lambda announcement: _tell(settings, announcement))
    return ExitCode.INTERRUPTED if ended_by == signal.SIGINT else ExitCode.COMPLETE


def _tell(settings: Settings, announcement: Announcement) -> None:
    emit([f"serving {settings.journal.address} at {announcement.url}\n"])
