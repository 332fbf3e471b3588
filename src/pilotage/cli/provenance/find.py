"""`pilotage provenance find` and `index`: find records by what they have, and run an index server."""

from __future__ import annotations

import logging
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.options import QueryCommand
from pilotage.cli.shared.output import emit, one_line, plural, print_message, table
from pilotage.cli.shared.server import address_of, ca_file_option, json_option
from pilotage.model.exit_codes import ExitCode
from pilotage.model.texts import moment

if TYPE_CHECKING:
    from pilotage.app.provenance.index import IndexConfig, StorageConfig
    from pilotage.app.service.serve_index import Announcement
    from pilotage.client import Server

log = logging.getLogger(__name__)

LIMIT_DEFAULT = 100


class FindCommand(QueryCommand):
    """A command with a query of records."""

    targets = ()


@click.command(cls=FindCommand)
@click.argument("query")
@click.option(
    "--index",
    "index_server",
    metavar="URL",
    help="Ask the index server at URL, or the one of a folder; without it, that of the setting provenance.index, else the records here.",
)
@click.option("--token-file", type=click.Path(), metavar="FILE", help="Read the access token from FILE.")
@ca_file_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=LIMIT_DEFAULT,
    show_default=True,
    metavar="N",
    help="Show at most N records.",
)
@click.option("--cursor", metavar="TEXT", help="Continue after the `next` of an earlier answer.")
@json_option
def find(
    query: str, index_server: str | None, token_file: str | None, limit: int, cursor: str | None, *, as_json: bool
) -> int:
    """Find records of jobs by what they have, and say where they lie.

    A query compares attributes of the job, its tags, files and nodes: "tag.patient_group=B and node.cpu_model~Xeon and
    submitted within 2026-01..2026-03". One of its conditions must compare an indexed attribute. Exit code 1: nothing was found.
    """
    from pilotage.app.provenance.index import find_at, find_here
    from pilotage.app.state_folder import settings_here
    from pilotage.client import ServerError

    settings = settings_here()
    named = index_server or settings.provenance.index
    if named:
        try:
            with address_of(named, token_file).server() as server:
                found = find_at(server, query, limit=limit, after=cursor)
        except ServerError as fault:
            if "pilotage serve" in fault.next_step:
                folder = f" --folder {shlex.quote(named)}" if Path(named).is_dir() else ""
                fault.next_step = f"start the index server with: pilotage provenance index{folder}"
            raise
    else:
        found = find_here(settings, query, limit=limit, after=cursor)
    if as_json:
        from pilotage import app

        emit([app.json_text(found)])
    else:
        emit(
            table(
                (each.job, one_line(each.name), each.state, each.owner, moment(each.submitted_at), _near(each.storage))
                for each in found.records
            )
        )
        more = f"; there are more: --cursor {found.next}" if found.next is not None else ""
        print_message(f"{plural(len(found.records), 'record')} found{more}")
    return ExitCode.COMPLETE if found.records else ExitCode.FAILED


def _near(storage: str) -> str:
    """A storage below the current folder without that."""
    below = Path.cwd()
    return str(Path(storage).relative_to(below)) if Path(storage).is_relative_to(below) else storage


@click.command()
@click.option("--config", type=click.Path(), metavar="FILE", help="Read the configuration from FILE, in TOML.")
@click.option("--name", metavar="NAME", help="The name of the index at its storages; without it, `index`.")
@click.option(
    "--storage",
    "storages",
    multiple=True,
    metavar="URL",
    help="Feed the index from the service at URL, or from that of a folder; may be repeated.",
)
@click.option(
    "--token-file",
    "token_files",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Read the access token of storages from FILE: one for all, or one for each.",
)
@ca_file_option
@click.option(
    "--folder", type=click.Path(), metavar="DIR", help="Keep the index and its token in DIR; without it, `index`."
)
@click.option("--database", metavar="URL", help="Keep the index in PostgreSQL: postgresql://…")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME", help="Keep this attribute; without any, all.")
@click.option("--indexed", multiple=True, metavar="NAME", help="Find records by this attribute; without any, by most.")
@click.option("--query", metavar="QUERY", help="Keep only records that QUERY finds.")
@click.option("--host", metavar="ADDRESS", help="Listen on ADDRESS; without it, on this computer only.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Listen on port N; without it, on any free one."
)
@click.option("--batch", type=click.IntRange(1, 500), metavar="N", help="Ask for N changes at once; without it, 500.")
@click.option(
    "--poll-seconds", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help="Ask storages so often for news."
)
@click.option("--rebuild", is_flag=True, help="Make the index anew from its storages.")
@click.option("--once", is_flag=True, help="Bring the index up to date, and exit.")
def index(
    storages: tuple[str, ...],
    token_files: tuple[str, ...],
    config: str | None,
    *,
    rebuild: bool,
    once: bool,
    **given: object,
) -> int:
    """Run an index server: it feeds itself from storages of records and answers queries over HTTP.

    It prints its address when it answers; `pilotage provenance find --index` asks it. Ctrl-C or SIGTERM stops it, and it may
    be killed at any time: it goes on where it was. Options override the configuration.
    """
    from pilotage.app.provenance.index import feed_index
    from pilotage.app.service.serve_index import serve_index
    from pilotage.cli.service.serve import begin_log, outlive_terminal

    chosen = _config(config, storages, token_files, given)
    to_file = begin_log("info")

    def connect(storage: StorageConfig) -> Server:
        return address_of(storage.server, storage.token_file or None).server()

    if once:
        for name, position in sorted(feed_index(chosen, connect=connect, rebuild=rebuild).items()):
            print_message(f"{name} was read up to position {position}")
        return ExitCode.COMPLETE
    outlive_terminal()

    def started(announcement: Announcement) -> None:
        emit([f"index {chosen.name} of {plural(len(chosen.storages), 'storage')} at {announcement.url}\n"])

    ended_by = serve_index(chosen, connect=connect, started=started, rebuild=rebuild)
    if to_file:
        log.info("the index has stopped")
    return ExitCode.INTERRUPTED if ended_by == signal.SIGINT else ExitCode.COMPLETE


def _config(
    file: str | None, storages: tuple[str, ...], token_files: tuple[str, ...], given: dict[str, object]
) -> IndexConfig:
    """The configuration of a file, with what options say instead."""
    from pilotage.app.provenance.index import IndexConfig, StorageConfig, changed_config, read_config

    config = read_config(Path(file)) if file is not None else IndexConfig()
    changes = {name: value for name, value in given.items() if value not in (None, ())}
    if storages:
        if len(token_files) not in (0, 1, len(storages)):
            raise click.UsageError("give one --token-file for all storages, or one for each.")
        files = token_files if len(token_files) == len(storages) else (token_files or ("",)) * len(storages)
        changes["storages"] = tuple(
            StorageConfig(server=server, token_file=token) for server, token in zip(storages, files, strict=True)
        )
    elif token_files:
        raise click.UsageError("--token-file is for --storage; a configuration names the file of each storage.")
    return changed_config(config, changes)
