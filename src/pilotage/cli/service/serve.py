"""`pilotage serve`: jobs are run and the book is kept, behind HTTP, until a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import WholeHelp
from pilotage.cli.shared.output import emit, one_line, say_to_reader, text_width
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.service.serve_book import Announcement
    from pilotage.model.settings.settings import Settings

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
    """Run the service: it runs jobs and answers over HTTP.

    Its address is said when it answers; commands in this folder and below find it by themselves. Ctrl-C or SIGTERM
    ends it in good order: what runs goes on, and is taken up again by the next one. With --book-only nothing is run,
    for programs that bring their own scheduler. What the options leave open is in the settings.
    """
    from pathlib import Path

    from pilotage.app import state_folder
    from pilotage.app.service import serve_book

    flags = {"journal.url": journal, "service.host": host, "service.port": port, "service.sites": sites}
    settings = state_folder.settings_here(flags)
    if stop:
        from pilotage.app.service.background import stop_service

        stopped = stop_service(settings, upward=journal is None)
        for told in (f"stopped {stopped.url}", *stopped.left):
            say_to_reader(told)
        return ExitCode.COMPLETE
    if book_only and not (slots is None and idle_seconds is None and sites is None):
        told = "--slots, --sites and --until-idle are for a service that runs jobs: leave --book-only out."
        raise click.UsageError(told)
    if background:
        from pilotage.app.service.background import start_in_background

        said = {"--slots": slots, "--sites": sites, "--host": host, "--port": port, "--until-idle": idle_seconds}
        options = [word for name, value in said.items() if value is not None for word in (name, str(value))]
        only = ["--book-only"] if book_only else []
        _tell(settings, start_in_background(settings, [*only, *options]))
        return ExitCode.COMPLETE

    outlive_terminal()
    to_file = begin_log(settings.service.log_level)
    others = state_folder.other_ports(settings, folder=Path.cwd(), flags=flags)

    def started(announcement: Announcement) -> None:
        if to_file:
            log.info("serving %s at %s", settings.journal.address, announcement.url)
        else:
            _tell(settings, announcement)

    def run() -> int:
        if book_only:
            ended_by = serve_book.serve_book(settings, started=started, other_ports=others)
        else:
            import_numpy_quickly()
            from pilotage.app.service.serve import serve_jobs

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


# `pilotage doctor`: each hop between here and a result, and what to do where one is broken.


@click.command()
@click.option("--journal", metavar="URL", help="Where the book is kept: sqlite:DIR or postgresql://…")
@json_option
def doctor(journal: str | None, *, as_json: bool) -> int:
    """Check every step between this computer and a result.

    Programs, disk, clock, token, service and agents are tried, one after the other: those of this folder, or of the
    nearest above it where it has none. The exit code is 1 where something is bad.
    """
    from pilotage.app.doctor import diagnose, folder_to_check

    findings = diagnose(folder_to_check(journal))
    if as_json:
        import msgspec

        from pilotage import app

        emit([app.json_text({"findings": [msgspec.to_builtins(each) for each in findings]})])
    else:
        width = max(text_width(each.hop) for each in findings)
        for each in findings:
            emit([f"{each.verdict:4}  {each.hop:{width}}  {one_line(each.message)}\n"])
            if each.next_step:
                emit([f"{'':4}  {'':{width}}  → {one_line(each.next_step)}\n"])
    return ExitCode.FAILED if any(each.verdict == "bad" for each in findings) else ExitCode.COMPLETE


# `pilotage tls`: a certificate for the service, of an authority of its own.


@click.group(cls=WholeHelp)
def tls() -> None:
    """Create certificates for the service."""


@tls.command("init")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A name or an address it is reached by; may be repeated."
)
@click.option("--days", type=click.IntRange(1, 3650), metavar="N", help="How long the certificate is valid; none: 365.")
@click.option(
    "--new-ca", is_flag=True, help="Replace the authority, too: whoever has the old ca.pem needs the new one."
)
@json_option
def init(hosts: tuple[str, ...], days: int | None, *, new_ca: bool, as_json: bool) -> int:
    """Make a certificate for the service of this folder.

    The first time an authority is made, too: its key stays in the folder `tls` beside the book. Later certificates are
    of the same authority, so whoever has its ca.pem need not be told; a service that runs takes them by itself. A
    service that spoke plainly speaks TLS from its next start.
    """
    from pilotage.app import state_folder
    from pilotage.app.service.credentials import SERVER_DAYS, init_tls

    made = init_tls(state_folder.settings_here(), hosts, days=days or SERVER_DAYS, new_ca=new_ca)
    if as_json:
        from pilotage import app

        emit([app.json_text(made)])
        return ExitCode.COMPLETE
    until = time.strftime("%Y-%m-%d", time.gmtime(made.expires_at))
    which = "a new" if made.new_ca else "the same"
    needed = "agents and clients elsewhere need it: --ca-file or PILOTAGE_CA_FILE"
    emit(
        [
            f"{made.certificate}: for {', '.join(made.hosts)}, until {until}\n",
            f"{made.ca_file}: {which} authority; {needed}\n",
        ]
    )
    return ExitCode.COMPLETE


# The log of a service: every line with its time, whatever it is about, and as much as the settings want.

_NOISY = ("uvicorn", "asyncio")  # what they say of themselves is for who looks for a fault
_ENDED = 1  # as any program of Python that ends by a fault


class OneLine(logging.Formatter):
    """A line for each record, with a date and the time in UTC; a traceback is part of it."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        """Time, level, the part that says it, and what it says."""
        self.converter = time.gmtime
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line."""
        lines = super().format(record).splitlines()
        return " | ".join(line.strip() for line in lines if line.strip())


def begin_log(level: str) -> bool:
    """Log to standard error from now on, what has at least a level; whether that is a file, in which all must have its time."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
    return is_file()


def is_file() -> bool:
    """Whether standard error is a file, and nobody sits before it."""
    try:
        return stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def logged(run: Callable[[], int]) -> int:
    """Do something whose end belongs into a log: what goes wrong is a line of it, and an exit code."""
    from pilotage.model.errors import PilotageError

    try:
        return run()
    except PilotageError as error:
        log.error("%s", error)  # it says what to do, and where it comes from does not matter
        return error.exit_code
    except OSError as error:
        log.error("%s", error)  # the system, not the program
        return ExitCode.BAD_INPUT
    except Exception:
        log.exception("the service ends by a fault of its own")
        return _ENDED


def outlive_terminal() -> None:
    """A hang-up ends no service. What it starts is not told to ignore one: a handler, unlike that, is not handed down."""

    def note(_number: int, _frame: FrameType | None) -> None:
        log.info("a hang-up (SIGHUP) was heard; the service goes on")

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
