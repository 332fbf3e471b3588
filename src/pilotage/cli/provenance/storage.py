"""`pilotage provenance fsck`, `gc` and `delete`: look after the storage of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.output import emit, plural, print_message, table
from pilotage.cli.shared.server import json_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import size_text

if TYPE_CHECKING:
    from pilotage.model.settings.settings import Settings


def _settings() -> Settings:
    from pilotage.app.state_folder import settings_here

    return settings_here()


@click.command()
@json_option
def fsck(*, as_json: bool) -> int:
    """Read every record and part of this folder, and name what is damaged or missing.

    The service may run meanwhile. Exit code 0: all is sound; 1: something is damaged.
    """
    from pilotage.app.provenance.records import find_damage, next_step

    found = list(find_damage(_settings()))
    if as_json:
        from pilotage import app

        emit([app.json_text({"sound": not found, "damage": found})])
    else:
        emit(table((each.place, each.what, each.sha256[:12], " ".join(each.jobs)) for each in found))
        print_message(f"{plural(len(found), 'fault')} found" if found else "sound")
        if next_step(found):
            print_message(next_step(found))
    return ExitCode.FAILED if found else ExitCode.COMPLETE


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be freed; change nothing.")
@json_option
def gc(*, dry_run: bool, as_json: bool) -> None:
    """Remove the parts that no record needs any more.

    Parts that other records share stay. Of a damaged storage only what certainly nobody needs is removed. Stop the service of
    this folder first; with --dry-run it may run.
    """
    from pilotage.app.provenance.recorded_jobs import never_deleted
    from pilotage.app.provenance.records import collect_parts

    settings = _settings()
    found = collect_parts(settings, dry_run=dry_run)
    kept = never_deleted(settings) if dry_run else []
    if as_json:
        from pilotage import app

        emit([app.json_text({"dry_run": dry_run, "collected": found} | ({"never_deleted": kept} if dry_run else {}))])
        return
    word = "would be removed" if dry_run else "removed"
    print_message(f"{plural(found.parts, 'part')} {word}, {size_text(found.freed_bytes)} freed")
    if kept:
        print_message(f"never deleted by retention (provenance.never_deleted): {' '.join(kept)}")
    if found.left_packs:
        print_message(
            f"left as they are, since they are damaged: {' '.join(found.left_packs)}; see: pilotage provenance fsck"
        )
    if found.unreadable:
        print_message(
            f"every part stays, since records that cannot be read may need any: {' '.join(found.unreadable)}; "
            "bring them back from a copy, or give them up: pilotage provenance delete JOB"
        )


@click.command("take-over")
def take_over() -> None:
    """Write the copy of the records in a store from this folder, in place of another one.

    For a store that a service claims that is gone for good, such as with its computer. If it still runs, it stores no records from then
    on and says so. Stop the service of this folder first.
    """
    from pilotage.app.provenance.records import take_over as take

    print_message(f"the copy in {take(_settings())} is written from this folder from now on")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@json_option
def delete(jobs: tuple[str, ...], *, as_json: bool) -> int:
    """Delete the records of jobs, with all revisions and annotations.

    Their parts are removed by `pilotage provenance gc`, unless other records share them. Stop the service of this folder
    first. Exit code 1: a job has no record here.
    """
    from pilotage.app.provenance.records import delete_records

    deleted = delete_records(_settings(), jobs)
    if as_json:
        from pilotage import app

        emit([app.json_text({"deleted": deleted})])
    else:
        for job in jobs:
            print_message(f"the record of {job} is deleted" if job in deleted else f"{job} has no record here")
    return ExitCode.COMPLETE if set(jobs) <= set(deleted) else ExitCode.FAILED
