"""`pilotage serve`, `doctor` and `tls`: run the service, check the setup, create certificates."""

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
from pilotage.cli.shared.output import emit, one_line, print_message, text_width
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.service.serve_book import Announcement
    from pilotage.model.settings.settings import Settings

log = logging.getLogger(__name__)


@click.command()
@click.option("--book-only", is_flag=True, help="Only keep the book and answer queries; run no jobs.")
@click.option(
    "--slots",
    type=click.IntRange(min=0),
    metavar="N",
    help="Run N packages at once here; without it one for each core, with 0 only at other sites.",
)
@click.option(
    "--sites", metavar="FILE", help="Read the sites from FILE; without it sites.yaml here, or in your settings."
)
@click.option("--journal", metavar="URL", help="Use the book at URL: sqlite:DIR or postgresql://…")
@click.option("--host", metavar="ADDRESS", help="Listen on ADDRESS.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Listen on port N; 0 takes any free one.")
@click.option(
    "--background", is_flag=True, help="Return when the service answers, and leave it running in the background."
)
@click.option(
    "--until-idle",
    "idle_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Exit after this long without jobs and requests.",
)
@click.option("--stop", is_flag=True, help="Stop the service of this folder, or of the nearest parent folder, cleanly.")
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

    The service prints its address when it answers; commands in this folder and below find it by themselves. Ctrl-C or
    SIGTERM stops it cleanly: running attempts continue, and the next service takes them over. With --book-only it runs no
    jobs, for programs that have their own scheduler. Everything that no option sets comes from the settings.
    """
    from pathlib import Path

    from pilotage.app import state_folder
    from pilotage.app.service import serve_book

    flags = {"journal.url": journal, "service.host": host, "service.port": port, "service.sites": sites}
    settings = state_folder.settings_here(flags)
    if stop:
        from pilotage.app.service.background import stop_service

        stopped = stop_service(settings, upward=journal is None)
        for line in (f"stopped {stopped.url}", *stopped.left):
            print_message(line)
        return ExitCode.COMPLETE
    if book_only and not (slots is None and idle_seconds is None and sites is None):
        message = "--slots, --sites and --until-idle are for a service that runs jobs: leave out --book-only."
        raise click.UsageError(message)
    if background:
        from pilotage.app.service.background import start_in_background

        given = {"--slots": slots, "--sites": sites, "--host": host, "--port": port, "--until-idle": idle_seconds}
        options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
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
            log.info("the service has stopped%s", f" by {signal.Signals(ended_by).name}" if ended_by else "")
        return ExitCode.INTERRUPTED if ended_by == signal.SIGINT else ExitCode.COMPLETE

    return logged(run) if to_file else run()


def _tell(settings: Settings, announcement: Announcement) -> None:
    wanted, url = settings.service.port, announcement.url
    if wanted and not settings.service.address and urlsplit(url).port not in (None, wanted):
        print_message(
            f"another program uses port {wanted}: the service chose a free one; choose yourself with --port N"
        )
    emit([f"serving {settings.journal.address} at {url}\n"])


# `pilotage doctor`: checks each hop between here and a result, and says how to repair a broken one.


@click.command()
@click.option("--journal", metavar="URL", help="Use the book at URL: sqlite:DIR or postgresql://…")
@json_option
def doctor(journal: str | None, *, as_json: bool) -> int:
    """Check every step between this computer and a result.

    It tests programs, disk, clock, token, service and agents, one after the other: those of this folder, or else of the
    nearest parent folder. Exit code 1: something is wrong.
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


# `pilotage tls`: a certificate for the service, signed by an authority of its own.


@click.group(cls=WholeHelp)
def tls() -> None:
    """Create certificates for the service."""


@tls.command("init")
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="A host name or address of the service; may be repeated."
)
@click.option(
    "--days", type=click.IntRange(1, 3650), metavar="N", help="Make the certificate valid for N days; without it, 365."
)
@click.option(
    "--new-ca",
    is_flag=True,
    help="Also replace the authority: agents and clients with the old ca.pem need the new one.",
)
@json_option
def init(hosts: tuple[str, ...], days: int | None, *, new_ca: bool, as_json: bool) -> int:
    """Create a certificate for the service of this folder.

    The first call also creates an authority, whose key stays in the folder `tls` beside the book. The same authority signs
    later certificates, so agents and clients keep their ca.pem, and a running service loads the new certificate by itself. A
    service without TLS uses it from its next start.
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


# The log of a service: one line with a time for each record, at the level of the settings.

_NOISY = ("uvicorn", "asyncio")  # their own messages are shown only at level debug
_CRASHED = 1  # the exit code of a Python program that ends with an uncaught exception


class OneLine(logging.Formatter):
    """Formats each record on one line, with date and time in UTC; a traceback is joined into it."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        self.converter = time.gmtime
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The record on one line."""
        lines = super().format(record).splitlines()
        return " | ".join(line.strip() for line in lines if line.strip())


def begin_log(level: str) -> bool:
    """Log records of at least a level to standard error; return whether that is a file, where each line needs a time."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if level != "debug":
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
    return is_file()


def is_file() -> bool:
    """Whether standard error is a regular file, not a terminal."""
    try:
        return stat.S_ISREG(os.fstat(sys.stderr.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def logged(run: Callable[[], int]) -> int:
    """Run something whose errors belong in the log; return the exit code."""
    from pilotage.model.errors import PilotageError

    try:
        return run()
    except PilotageError as error:
        log.error("%s", error)  # the message says what to do; a traceback would not help
        return error.exit_code
    except OSError as error:
        log.error("%s", error)  # the operating system failed, not the program
        return ExitCode.BAD_INPUT
    except Exception:  # a bug: the log is the only place where its traceback is seen
        log.exception("the service crashed")
        return _CRASHED


def outlive_terminal() -> None:
    """Survive a hang-up (SIGHUP). A handler is used, since child processes would inherit an ignored signal."""

    def note(_number: int, _frame: FrameType | None) -> None:
        log.info("the terminal was closed (SIGHUP); the service keeps running")

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, note)
