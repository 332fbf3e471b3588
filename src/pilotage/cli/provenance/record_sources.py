"""Where commands read records from: a server, or a folder of records."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pilotage.cli.shared.server import address_of, connect_address_to_read, server_option

if TYPE_CHECKING:
    from pilotage.app.provenance.recorded_jobs import RecordedJobs
    from pilotage.client import Server

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Records(click.Path):
    """A folder of records, or a URL in a store, whose records are brought into a folder while the command runs."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The folder."""
        if "://" not in os.fspath(value) or ctx is None:
            return super().convert(value, param, ctx)
        from pilotage.app.provenance.records import fetch_records
        from pilotage.app.state_folder import settings_here

        with ExitStack() as stack:  # a context that is not complete yet is never closed
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotage-records-"))
            fetch_records(settings_here(), os.fspath(value), Path(made, "records"))
            ctx.call_on_close(stack.pop_all().close)
        return Path(made, "records")


def records_options(command: Decorated) -> Decorated:
    """`--records`, and `--server`, `--token-file` and `--ca-file`."""
    command = server_option(command)
    return click.option(
        "--records",
        "folder",
        type=_Records(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Read the records of FOLDER, such as a copy of a storage, or of a URL such as s3://bucket/records, instead of those of a server.",
    )(command)


@contextmanager
def recorded_jobs(folder: Path | None, server: str | None, token_file: str | None) -> Iterator[RecordedJobs]:
    """The records that a command reads."""
    from pilotage.app.provenance.recorded_jobs import recorded_at, recorded_in

    if folder is not None:
        with recorded_in(folder) as found:
            yield found
        return
    from pilotage.app.provenance.records import RECORDS_FOLDER

    address = address_of(server, token_file)
    kept = Path(address.origin) / RECORDS_FOLDER if address.origin else None
    with (
        connect_address_to_read(address) as connection,
        recorded_at(
            connection,
            lambda word: recorded_job(connection, word),
            folder=kept if kept is not None and kept.is_dir() else None,
        ) as found,
    ):
        yield found


def recorded_job(connection: Server, word: str) -> str:
    """The id of a job from its id or name; a word that the book does not know may be that of a record alone."""
    from pilotage.app.provenance.served_records import records_at
    from pilotage.cli.shared.job_names import find_job_to_show
    from pilotage.client import ServerRefused

    try:
        return find_job_to_show(connection, word)
    except ServerRefused:
        records = records_at(connection)
        return word if records.record(word) is not None else records.newest(word) or word
