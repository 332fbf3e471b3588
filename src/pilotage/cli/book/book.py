"""`pilotage book`: looks after a book."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.options import WholeHelp, output_option
from pilotage.cli.shared.output import emit, plural, say_to_reader, table
from pilotage.cli.shared.server import address_of, json_option, local_addresses, server_option
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app.maintenance import BookCheck
    from pilotage.client import Address
    from pilotage.client.deliver import Delivery
    from pilotage.model.settings.settings import Settings

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@click.group(cls=WholeHelp)
def book() -> None:
    """Maintain a book: back up, check, rebuild, seal, dump, load, purge.

    All but `backup` and `dump` need the book for themselves: stop its service first.
    """


def journal_option(command: Decorated) -> Decorated:
    """`--journal`: which book."""
    help_text = "Which book: sqlite:DIR or postgresql://…; none: what the settings say."
    return click.option("--journal", metavar="URL", help=help_text)(command)


def dry_run_option(command: Decorated) -> Decorated:
    """`--dry-run`: say, and do nothing."""
    return click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")(command)


def _settings(journal: str | None) -> Settings:
    from pilotage.app.state_folder import settings_here

    return settings_here({"journal.url": journal})


# --- whether it is sound ----------------------------------------------------------------------------------------------


@book.command()
@journal_option
@json_option
def check(journal: str | None, *, as_json: bool) -> int:
    """Verify that the rows of the book are what its events say.

    Exit code 0: they are; 1: they are not, and `pilotage book rebuild` puts that right.
    """
    from pilotage.app.maintenance import check_book

    verdict = check_book(_settings(journal))
    _tell(verdict, as_json=as_json)
    if not verdict.sound:
        say_to_reader("put it right with: pilotage book rebuild")
    return ExitCode.COMPLETE if verdict.sound else ExitCode.FAILED


@book.command()
@journal_option
@json_option
def rebuild(journal: str | None, *, as_json: bool) -> None:
    """Fold all events anew, and put right every row that is not what they say."""
    from pilotage.app.maintenance import rebuild_book

    verdict = rebuild_book(_settings(journal))
    _tell(verdict, as_json=as_json)
    if not verdict.sound:
        say_to_reader("put right; see that it is with: pilotage book check")


def _tell(verdict: BookCheck, *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        told = {"sound": verdict.sound, "events": verdict.events, "differences": verdict.counts, "first": verdict.first}
        emit([app.json_text(told)])
        return
    count = sum(verdict.counts.values())
    word = "sound" if verdict.sound else plural(count, "difference")
    emit([f"{plural(verdict.events, 'event')}: {word}\n"])
    emit(table(((each.table, each.key, each.what) for each in verdict.first), indent="  "))
    if count > len(verdict.first):
        emit([f"  … and {count - len(verdict.first):,} more\n"])


# --- jobs that are over -----------------------------------------------------------------------------------------------


@book.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@journal_option
def seal(jobs: tuple[str, ...], journal: str | None) -> None:
    """Move finished jobs out of the live book, each into a file of its own.

    They are asked for by their id as before; a query over packages leaves them out unless it names the job. A late
    event brings a job back.
    """
    from pilotage.app.maintenance import seal_jobs

    seal_jobs(_settings(journal), jobs)


@book.command()
@click.argument("job", required=False)
@click.option("--all", "all_jobs", is_flag=True, help="Every job of the book.")
@output_option
@journal_option
def dump(job: str | None, output: str, journal: str | None, *, all_jobs: bool) -> None:
    """Write everything known of a job as lines of JSON, from which `pilotage book load` makes it anew.

    Its service may run meanwhile: what is known at this moment is written.
    """
    from pilotage.app.maintenance import dump_all, dump_job

    if (job is None) != all_jobs:
        raise click.UsageError("name one job, or say --all")
    settings = _settings(journal)
    lines = dump_all(settings) if job is None else dump_job(settings, job)
    emit((line.decode() for line in lines), output=output)


@book.command()
@click.argument("file", type=click.Path(allow_dash=True))
@journal_option
def load(file: str, journal: str | None) -> None:
    """Take dumped jobs in, all or none; a job that is known here already is refused.

    FILE is what `pilotage book dump` wrote, of one job or of many, also of several services one after the other; - is standard
    input. A book is made where there is none.
    """
    from pilotage.app.maintenance import load_jobs

    for each in load_jobs(_settings(journal), _lines(file)):
        how = f", which is not over: it is held until `pilotage release {each.job}`" if each.held else ""
        say_to_reader(f"loaded job {each.job}{how}")


@book.command()
@click.argument("folder", type=click.Path(path_type=Path))
@journal_option
@json_option
def backup(folder: Path, journal: str | None, *, as_json: bool) -> None:
    """Copy the book into a new FOLDER, whole and at one moment, while its service goes on.

    The copy is a state folder: to bring it back, put it in the place of the lost one. A book in PostgreSQL is backed up with
    pg_dump.
    """
    from pilotage.app.maintenance import backup_book

    copied = backup_book(_settings(journal), folder)
    if as_json:
        from pilotage import app

        emit([app.json_text({"folder": str(folder), "jobs": copied.jobs, "position": copied.position})])
        return
    say_to_reader(f"backed up {plural(copied.jobs, 'job')}, {plural(copied.position, 'event')}: {folder}")


def _lines(file: str) -> Iterator[bytes]:
    if file == "-":
        yield from sys.stdin.buffer
        return
    with Path(file).open("rb") as stream:
        yield from stream


@book.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--force", is_flag=True, help="Also jobs that are not over.")
@dry_run_option
@journal_option
def purge(jobs: tuple[str, ...], journal: str | None, *, force: bool, dry_run: bool) -> None:
    """Forget jobs for good, but for a line that says that they were purged."""
    from pilotage.app.maintenance import purge_jobs

    purged = purge_jobs(_settings(journal), jobs, force=force, dry_run=dry_run)
    word = "would be purged" if dry_run else "purged"
    for each in purged:
        say_to_reader(f"{word}: job {each.job}, {each.state}, {plural(each.packages, 'package')}")


@book.command()
@dry_run_option
@journal_option
@json_option
def retain(journal: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Do what is due for finished jobs: seal them, clear them after their time, and purge them some days later.

    How long they are kept is a setting: [retention].
    """
    from pilotage.app.maintenance import retain_jobs

    plan = retain_jobs(_settings(journal), dry_run=dry_run)
    if as_json:
        from pilotage import app

        emit([app.json_text({"dry_run": dry_run, "actions": plan.actions, "parked": plan.parked})])
        return
    emit(table((each.deed, each.job, each.why) for each in plan.actions))
    if plan.parked:
        word = "would be dropped" if dry_run else "dropped"
        say_to_reader(f"{plural(plan.parked, 'event')} of jobs that nobody registered {word}")
    if not plan.actions and not plan.parked:
        say_to_reader("nothing is due")


# --- other books ------------------------------------------------------------------------------------------------------


@book.command("import-ulm")
@click.argument("file", type=click.Path(allow_dash=True))
@json_option
def import_ulm(file: str, *, as_json: bool) -> int:
    """Read the jobs of a file of gLite L&B's ULM lines, and show how each stands; nothing is kept.

    The order of the lines does not matter. Exit code 2: some lines could not be read; the others count.
    """
    from pilotage.app.maintenance import import_ulm as read
    from pilotage.cli.shared.problems import show_problems

    imported = read(file)
    show_problems(imported.faults, severity="error")
    if as_json:
        from pilotage import app

        emit([app.json_text({"jobs": imported.jobs})])
    else:
        show_problems(imported.warnings, severity="warning")
        rows = ((each.id, each.state, each.events, each.resubmissions, each.destination) for each in imported.jobs)
        emit(table(rows, header=("JOB", "STATE", "EVENTS", "RESUBMISSIONS", "DESTINATION")))
    return ExitCode.BAD_INPUT if imported.faults else ExitCode.COMPLETE


# `pilotage courier`: delivers the events that wait in the spool.

ONCE_SECONDS = 300.0


@click.command()
@click.option("--once", is_flag=True, help="Deliver what waits now, and end.")
@click.option("--spool", type=click.Path(), metavar="DIR", help="Where events wait; none: PILOTAGE_SPOOL.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.1),
    default=ONCE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long --once takes for each server at most.",
)
@json_option
@server_option
def courier(
    spool: str | None,
    timeout_seconds: float,
    server: str | None,
    token_file: str | None,
    *,
    once: bool,
    as_json: bool,
) -> int:
    """Deliver spooled events to their servers.

    It goes on until interrupted, unless --once is given. Whatever cannot be delivered is kept and tried again. A server that refuses an event says why; it is set aside in
    refused.jsonl of its queue. Exit code of --once: 0 when nothing waits any more, 3 when something does.
    """
    from pilotage.client.deliver import deliver_for_ever, deliver_once, spool_at

    if as_json and not once:
        raise click.UsageError("--json goes with --once.")
    found = spool_at(spool, dict(os.environ))

    def known() -> Iterator[Address]:
        yield from local_addresses()
        if server is not None or os.environ.get("PILOTAGE_SERVER"):
            yield address_of(server, token_file)

    if not once:
        gc.enable()  # this goes on for days
        stop = threading.Event()
        try:
            deliver_for_ever(found, known, stop=stop, say=say_to_reader)
        except KeyboardInterrupt:
            stop.set()
            return ExitCode.INTERRUPTED
        return ExitCode.COMPLETE
    deliveries = deliver_once(found, known, timeout_seconds=timeout_seconds)
    _tell_delivered(deliveries, as_json=as_json)
    return ExitCode.STOPPED if any(each.waiting for each in deliveries) else ExitCode.COMPLETE


def _tell_delivered(deliveries: list[Delivery], *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        emit([app.json_text({"queues": deliveries})])
        return
    rows = [(each.server, each.delivered, each.refused, each.waiting) for each in deliveries]
    emit(table(rows, header=("SERVER", "DELIVERED", "REFUSED", "WAITING")))
    for each in deliveries:
        if each.problem and each.waiting:
            say_to_reader(f"{each.server}: {each.problem}")
        if each.refused:
            say_to_reader(f"{each.server}: what it refused, and why: {each.folder}/refused.jsonl")
