"""`pilotage book` and `pilotage courier`: maintain a book, and deliver spooled events."""

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
from pilotage.cli.shared.output import emit, plural, print_message, table
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

    Stop the service of the book first; only `backup` and `dump` work while it runs.
    """


def journal_option(command: Decorated) -> Decorated:
    """`--journal`."""
    help_text = "Use the book at URL, sqlite:DIR or postgresql://…; without it, the one in the settings."
    return click.option("--journal", metavar="URL", help=help_text)(command)


def dry_run_option(command: Decorated) -> Decorated:
    """`--dry-run`."""
    return click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")(command)


def _settings(journal: str | None) -> Settings:
    from pilotage.app.state_folder import settings_here

    return settings_here({"journal.url": journal})


# --- consistency ------------------------------------------------------------------------------------------------------


@book.command()
@journal_option
@json_option
def check(journal: str | None, *, as_json: bool) -> int:
    """Verify that the tables of the book agree with its events.

    Exit code 0: they agree; 1: they differ, and `pilotage book rebuild` repairs them.
    """
    from pilotage.app.maintenance import check_book

    verdict = check_book(_settings(journal))
    _tell(verdict, as_json=as_json)
    if not verdict.sound:
        print_message("repair it with: pilotage book rebuild")
    return ExitCode.COMPLETE if verdict.sound else ExitCode.FAILED


@book.command()
@journal_option
@json_option
def rebuild(journal: str | None, *, as_json: bool) -> None:
    """Replay all events and repair every row that differs from them."""
    from pilotage.app.maintenance import rebuild_book

    verdict = rebuild_book(_settings(journal))
    _tell(verdict, as_json=as_json)
    if not verdict.sound:
        print_message("repaired; verify it with: pilotage book check")


def _tell(verdict: BookCheck, *, as_json: bool) -> None:
    if as_json:
        from pilotage import app

        report = {
            "sound": verdict.sound,
            "events": verdict.events,
            "differences": verdict.counts,
            "first": verdict.first,
        }
        emit([app.json_text(report)])
        return
    count = sum(verdict.counts.values())
    word = "sound" if verdict.sound else plural(count, "difference")
    emit([f"{plural(verdict.events, 'event')}: {word}\n"])
    emit(table(((each.table, each.key, each.what) for each in verdict.first), indent="  "))
    if count > len(verdict.first):
        emit([f"  … and {count - len(verdict.first):,} more\n"])


# --- finished jobs ----------------------------------------------------------------------------------------------------


@book.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@journal_option
def seal(jobs: tuple[str, ...], journal: str | None) -> None:
    """Move finished jobs out of the live book, each into a read-only file of its own.

    Commands still find a sealed job by its id. A query for packages leaves sealed jobs out unless it names the job. A
    late event moves a job back into the live book.
    """
    from pilotage.app.maintenance import seal_jobs

    seal_jobs(_settings(journal), jobs)


@book.command()
@click.argument("job", required=False)
@click.option("--all", "all_jobs", is_flag=True, help="Dump every job of the book.")
@output_option
@journal_option
def dump(job: str | None, output: str, journal: str | None, *, all_jobs: bool) -> None:
    """Export a job as lines of JSON, which `pilotage book load` imports.

    The service may run meanwhile: the dump shows the job at one moment.
    """
    from pilotage.app.maintenance import dump_all, dump_job

    if (job is None) != all_jobs:
        raise click.UsageError("name one job, or use --all")
    settings = _settings(journal)
    lines = dump_all(settings) if job is None else dump_job(settings, job)
    emit((line.decode() for line in lines), output=output)


@book.command()
@click.argument("file", type=click.Path(allow_dash=True))
@journal_option
def load(file: str, journal: str | None) -> None:
    """Import dumped jobs, all or none; a job that this book already has is rejected.

    FILE is the output of `pilotage book dump`, of one job or of many; the dumps of several services may follow one another
    in it. - is standard input. A missing book is created.
    """
    from pilotage.app.maintenance import load_jobs

    for each in load_jobs(_settings(journal), _lines(file)):
        how = f", which has not ended: it is held until `pilotage release {each.job}`" if each.held else ""
        print_message(f"loaded job {each.job}{how}")


@book.command()
@click.argument("folder", type=click.Path(path_type=Path))
@journal_option
@json_option
def backup(folder: Path, journal: str | None, *, as_json: bool) -> None:
    """Copy the book into a new FOLDER, in one consistent state, while its service runs.

    The copy is a state folder: to restore it, put it in the place of the lost one. Back up a book in PostgreSQL with
    pg_dump.
    """
    from pilotage.app.maintenance import backup_book

    copied = backup_book(_settings(journal), folder)
    if as_json:
        from pilotage import app

        emit([app.json_text({"folder": str(folder), "jobs": copied.jobs, "position": copied.position})])
        return
    print_message(f"backed up {plural(copied.jobs, 'job')}, {plural(copied.position, 'event')}: {folder}")


def _lines(file: str) -> Iterator[bytes]:
    if file == "-":
        yield from sys.stdin.buffer
        return
    with Path(file).open("rb") as stream:
        yield from stream


@book.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option("--force", is_flag=True, help="Also purge jobs that have not ended.")
@dry_run_option
@journal_option
def purge(jobs: tuple[str, ...], journal: str | None, *, force: bool, dry_run: bool) -> None:
    """Delete jobs for good; one line that records the purge is kept."""
    from pilotage.app.maintenance import purge_jobs

    purged = purge_jobs(_settings(journal), jobs, force=force, dry_run=dry_run)
    word = "would be purged" if dry_run else "purged"
    for each in purged:
        print_message(f"{word}: job {each.job}, {each.state}, {plural(each.packages, 'package')}")


@book.command()
@dry_run_option
@journal_option
@json_option
def retain(journal: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Apply the retention settings: seal finished jobs, clear them when their time is up, purge them some days later.

    Rows of ended pilots leave the book once the jobs that they served are sealed; what they taught about latencies stays.

    The times are in [retention] of the settings.
    """
    from pilotage.app.maintenance import retain_jobs

    plan = retain_jobs(_settings(journal), dry_run=dry_run)
    if as_json:
        from pilotage import app

        told = {
            "dry_run": dry_run,
            "actions": plan.actions,
            "parked": plan.parked,
            "pilots": len(plan.pilots),
            "records": plan.records,
        }
        emit([app.json_text(told)])
        return
    emit(table((each.deed, each.job, each.why) for each in plan.actions))
    if plan.parked:
        word = "would be dropped" if dry_run else "dropped"
        print_message(f"{plural(plan.parked, 'event')} of jobs that were never registered {word}")
    if plan.pilots:
        word = "would leave" if dry_run else "left"
        print_message(f"{plural(len(plan.pilots), 'row')} of ended pilots {word} the book")
    if plan.records.deleted:
        word = "would be deleted" if dry_run else "deleted"
        print_message(f"records whose time is over, {word}: {' '.join(plan.records.deleted)}")
    if plan.records.kept:
        print_message(f"records that are never deleted (provenance.never_deleted): {' '.join(plan.records.kept)}")
    if not plan.actions and not plan.parked and not plan.pilots and not plan.records.deleted:
        print_message("nothing is due")


# --- other books ------------------------------------------------------------------------------------------------------


@book.command("import-ulm")
@click.argument("file", type=click.Path(allow_dash=True))
@json_option
def import_ulm(file: str, *, as_json: bool) -> int:
    """Show the states of the jobs in a file of gLite L&B's ULM lines; nothing is stored.

    The order of the lines does not matter. Exit code 2: some lines could not be read; the others were used.
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


# `pilotage courier`: delivers spooled events.

ONCE_SECONDS = 300.0


@click.command()
@click.option("--once", is_flag=True, help="Deliver the events that are waiting now, then exit.")
@click.option("--spool", type=click.Path(), metavar="DIR", help="The spool folder; without it, PILOTAGE_SPOOL.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.1),
    default=ONCE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --once, spend at most this long on each server.",
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

    The courier runs until interrupted, or until the spool is empty with --once. Events that cannot be delivered are kept
    and sent again. Events that a server rejects move to refused.jsonl in their queue, with the reason. Exit code of --once:
    0 all events are delivered, 3 some still wait.
    """
    from pilotage.client.deliver import deliver_for_ever, deliver_once, spool_at

    if as_json and not once:
        raise click.UsageError("--json requires --once.")
    found = spool_at(spool, dict(os.environ))

    def known() -> Iterator[Address]:
        yield from local_addresses()
        if server is not None or os.environ.get("PILOTAGE_SERVER"):
            yield address_of(server, token_file)

    if not once:
        gc.enable()  # the courier runs for days
        stop = threading.Event()
        try:
            deliver_for_ever(found, known, stop=stop, say=print_message)
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
            print_message(f"{each.server}: {each.problem}")
        if each.refused:
            print_message(f"{each.server}: rejected events and the reasons: {each.folder}/refused.jsonl")
